// Level after level by one block alone, while the others wait: a small frontier costs two barriers of the block a level
// and none of the grid. The frontier is in shared memory, and so is what a level finds: a hash table keeps each vertex
// once, with its smallest parent, until the level ends and all are written. So nothing waits for an atomic in memory.
#pragma once
#include "graph/resident/push.cuh"

namespace tp::graph::resident {

// Shared memory of the block, for vertices below 2^32 - 1.
template <class P>
struct SoloRoom {
  static constexpr unsigned empty = ~0u;
  unsigned *keys, *parents;  // the table: [solo_edges], as many as a level may find
  typename P::Row* begins;   // two frontiers: [2 * solo_pieces]
  unsigned *vertices, *lengths;
  struct Count {
    unsigned vertices, edges, pieces;
  }* counts;  // of two levels
  int entries, slots;

  TP_DEVICE SoloRoom(char* room, const Policy& policy) : entries(policy.solo_pieces), slots(policy.solo_edges) {
    begins = reinterpret_cast<typename P::Row*>(room);
    vertices = reinterpret_cast<unsigned*>(begins + 2 * entries);
    lengths = vertices + 2 * entries;
    keys = lengths + 2 * entries;
    parents = keys + slots;
    counts = reinterpret_cast<Count*>(parents + slots);
  }
  static int64_t bytes(const Policy& policy) {
    return 2 * policy.solo_pieces * int64_t(sizeof(typename P::Row) + 8) + policy.solo_edges * int64_t(8) +
           2 * int64_t(sizeof(Count));
  }
  // Whether the table did not hold v; `from` is a parent of it.
  TP_DEVICE bool insert(unsigned v, unsigned from) const {
    const unsigned mask = unsigned(slots) - 1;
    for (unsigned slot = (v * 2654435761u) >> 12 & mask;; slot = (slot + 1) & mask) {
      const unsigned before = atomicCAS(keys + slot, empty, v);
      if (before != empty && before != v) continue;
      atomicMin(parents + slot, from);
      return before == empty;
    }
  }
};

template <class P>
TP_DEVICE bool fits_solo(const P& p, const Tally& t) {
  return t.pieces <= unsigned(p.policy.solo_pieces) && t.edges <= unsigned(p.policy.solo_edges) &&
         p.vertices < int64_t(SoloRoom<P>::empty);
}

// Of all lanes, those that `wins` append vertex v and its pieces to frontier `to`, as far as there is room.
template <class P>
TP_DEVICE void append_solo(const SoloRoom<P>& room, int to, typename SoloRoom<P>::Count& count, bool wins, unsigned v,
                           typename P::Row begin, int64_t length) {
  if (!__any_sync(~0u, wins)) return;
  const unsigned pieces = wins ? unsigned(tp::min(pieces_of(length), int64_t(room.entries) + 1)) : 0;
  const unsigned upto = block::inclusive_scan<Sum<unsigned>>(pieces);
  // What is counted too low is more than fits anyway.
  const unsigned edges = __reduce_add_sync(~0u, wins ? unsigned(tp::min(length, int64_t(room.slots) + 1)) : 0);
  const unsigned found = unsigned(__popc(__ballot_sync(~0u, wins)));
  unsigned at = 0;
  if (lane_id() == block::warp_size - 1) {
    at = atomicAdd(&count.pieces, upto);
    atomicAdd(&count.edges, edges);
    atomicAdd(&count.vertices, found);
  }
  at = __shfl_sync(~0u, at, block::warp_size - 1) + upto - pieces;
  for (unsigned i = 0; i < pieces && at + i < unsigned(room.entries); ++i) {
    const unsigned place = unsigned(to * room.entries) + at + i;
    room.vertices[place] = v;
    room.begins[place] = begin + typename P::Row(i) * piece;
    room.lengths[place] = unsigned(tp::min(length - int64_t(i) * piece, int64_t(piece)));
  }
}

// Collects the neighbours of frontier `here` that no level has.
template <class P>
TP_DEVICE void expand_solo(const P& p, const SoloRoom<P>& room, int here, int pieces,
                           typename SoloRoom<P>::Count& count) {
  using Vertex = typename P::Vertex;
  constexpr int items = 4;
  const int share = tp::max(1, tp::min(32, (pieces + warps - 1) / warps));
  for (int first = warp_id() * share; first < pieces; first += warps * share) {
    const int i = here * room.entries + first + lane_id();
    const bool has = lane_id() < share && first + lane_id() < pieces;
    const unsigned vertex = has ? room.vertices[i] : 0, length = has ? room.lengths[i] : 0;
    const typename P::Row begin = has ? room.begins[i] : typename P::Row(0);
    expand<items>(p, Vertex(vertex), begin, length, [&](const Vertex(&from)[items], const Vertex(&to)[items]) {
      bool open[items];
      typename P::Row begins[items];
      int64_t lengths[items];
#pragma unroll
      for (int k = 0; k < items; ++k) {
        open[k] = to[k] < Vertex(p.vertices);
        if (!open[k]) continue;
        begins[k] = typename P::Row(p.out.begin(int64_t(to[k])));  // wanted only if it is open, but then at once
        lengths[k] = p.out.end(int64_t(to[k])) - begins[k];
        open[k] = p.levels[to[k]] == unreached;
      }
#pragma unroll
      for (int k = 0; k < items; ++k) {
        const bool wins = open[k] && room.insert(unsigned(to[k]), unsigned(from[k]));
        append_solo<P>(room, 1 - here, count, wins, unsigned(to[k]), begins[k], lengths[k]);
      }
    });
  }
}

// Writes what the table holds and empties it; `leaves`: into the queue, too, from place `base` on.
template <class P>
TP_DEVICE void settle(const P& p, const SoloRoom<P>& room, int level, bool leaves, int64_t base, Tally& left) {
  for (int slot = int(threadIdx.x); slot < room.slots; slot += threads) {
    const unsigned v = room.keys[slot];
    if (v == SoloRoom<P>::empty) continue;
    p.levels[v] = level;
    p.parents[v] = room.parents[slot];
    atomicOr(p.visited + v / 32, 1u << v % 32);
    room.keys[slot] = room.parents[slot] = SoloRoom<P>::empty;
    if (!leaves) continue;
    const int64_t begin = p.out.begin(v), length = p.out.end(v) - begin;
    const auto pieces = static_cast<unsigned long long>(pieces_of(length));
    store_pieces(p, base + int64_t(atomicAdd(&left.pieces, pieces)), v, typename P::Row(begin), length);
    atomicAdd(&left.edges, static_cast<unsigned long long>(length));
    atomicAdd(&left.vertices, 1ull);
  }
}

// One block: from the frontier of `level` - 1, which fits, until one does not or there is none. What does not fit is
// appended to the queue behind the frontier.
template <class P>
TP_DEVICE void solo(const P& p, Frontier frontier, int64_t level, char* shared) {
  __shared__ Tally left;
  const SoloRoom<P> room(shared, p.policy);
  for (int i = int(threadIdx.x); i < room.slots; i += threads) room.keys[i] = room.parents[i] = SoloRoom<P>::empty;
  for (int i = int(threadIdx.x); i < frontier.pieces; i += threads) {
    room.vertices[i] = unsigned(p.queue_vertices[frontier.begin + i]);
    room.begins[i] = p.queue_begins[frontier.begin + i];
    room.lengths[i] = p.queue_lengths[frontier.begin + i];
    atomicOr(p.visited + room.vertices[i] / 32, 1u << room.vertices[i] % 32);
  }
  if (threadIdx.x == 0) room.counts[0] = room.counts[1] = {}, left = {};
  __syncthreads();
  int here = 0, pieces = int(frontier.pieces);
  int64_t edges = 0;
  bool goes_on = true;
  for (; goes_on && level <= p.max_level; ++level) {
    auto& count = room.counts[level & 1];
    expand_solo(p, room, here, pieces, count);
    __syncthreads();
    const auto now = count;
    const bool leaves = now.pieces > unsigned(room.entries) || now.edges > unsigned(room.slots);
    if (threadIdx.x == 0) room.counts[(level + 1) & 1] = {};
    settle(p, room, int(level), leaves, frontier.begin + frontier.pieces, left);
    __syncthreads();
    if (!leaves) edges += now.edges;
    goes_on = !leaves && now.edges > 0;
    pieces = int(now.pieces);
    here = 1 - here;
  }
  if (threadIdx.x == 0) p.control->solo = {level, edges + int64_t(left.edges), left};
}

}  // namespace tp::graph::resident
