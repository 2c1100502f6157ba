// Level after level by one block alone, while the others wait: a small frontier costs barriers of the block and none of
// the grid. The frontier is in shared memory, and so is a hash table of its neighbours, each once with its smallest
// parent; those of them that no level has are the next. Most neighbours lie in the level before, where edges go both
// ways: a cache of what was reached lately keeps them out of the table, so that few levels have to be looked up.
#pragma once
#include "graph/resident/push.cuh"

namespace tp::graph::resident {

// Shared memory of the block, for vertices below 2^32 - 1.
template <class P>
struct SoloRoom {
  static constexpr unsigned empty = ~0u;
  struct Count {
    unsigned edges, pieces;
  };
  typename P::Row* begins;  // two frontiers: [2 * entries]
  unsigned *vertices, *lengths;
  unsigned *keys, *parents;  // the table: [slots]
  unsigned* reached;         // the cache: [slots], the last vertex reached of each slot
  Count* counts;             // of two levels
  int entries, slots;

  TP_DEVICE SoloRoom(char* room, const Policy& policy) : entries(policy.solo_pieces), slots(policy.solo_edges) {
    begins = reinterpret_cast<typename P::Row*>(room);
    vertices = reinterpret_cast<unsigned*>(begins + 2 * entries);
    lengths = vertices + 2 * entries;
    keys = reinterpret_cast<unsigned*>(room + frontier_bytes(policy));
    parents = keys + slots;
    reached = parents + slots;
    counts = reinterpret_cast<Count*>(reached + slots);
  }
  // Where the frontiers are, an appender gathers in the end.
  TP_HD static int64_t frontier_bytes(const Policy& policy) {
    const int64_t frontiers = 2 * policy.solo_pieces * int64_t(sizeof(typename P::Row) + 8);
    return tp::max(frontiers, warps * gathered * int64_t(sizeof(typename P::Word)));
  }
  static int64_t bytes(const Policy& policy) {
    return frontier_bytes(policy) + policy.solo_edges * int64_t(12) + 2 * int64_t(sizeof(Count));
  }
  TP_DEVICE unsigned slot_of(unsigned v) const { return (v * 2654435761u) >> 12 & (unsigned(slots) - 1); }
  // As many edges as slots: there is always a free one.
  TP_DEVICE void insert(unsigned v, unsigned from) const {
    for (unsigned slot = slot_of(v);; slot = (slot + 1) & (unsigned(slots) - 1)) {
      const unsigned before = atomicCAS(keys + slot, empty, v);
      if (before != empty && before != v) continue;
      atomicMin(parents + slot, from);
      return;
    }
  }
};

template <class P>
TP_DEVICE bool fits_solo(const P& p, unsigned long long pieces, unsigned long long edges) {
  return pieces <= unsigned(p.policy.solo_pieces) && edges <= unsigned(p.policy.solo_edges) &&
         p.vertices < int64_t(SoloRoom<P>::empty);
}

// Of all lanes, those that `wins` append vertex v and its pieces to frontier `to`, as far as there is room.
template <class P>
TP_DEVICE void append_solo(const SoloRoom<P>& room, int to, typename SoloRoom<P>::Count& count, bool wins, unsigned v,
                           typename P::Row begin, int64_t length) {
  if (!__any_sync(~0u, wins)) return;
  // What is counted too low is more than fits anyway.
  const unsigned pieces = wins ? unsigned(tp::min(pieces_of(length), int64_t(room.entries) + 1)) : 0;
  const unsigned upto = block::inclusive_scan<Sum<unsigned>>(pieces);
  const unsigned edges = warp_sum(wins ? unsigned(tp::min(length, int64_t(room.slots) + 1)) : 0u);
  unsigned at = 0;
  if (lane_id() == block::warp_size - 1) {
    at = atomicAdd(&count.pieces, upto);
    atomicAdd(&count.edges, edges);
  }
  at = __shfl_sync(~0u, at, block::warp_size - 1) + upto - pieces;
  for (unsigned i = 0; i < pieces && at + i < unsigned(room.entries); ++i) {
    const unsigned place = unsigned(to * room.entries) + at + i;
    room.vertices[place] = v;
    room.begins[place] = begin + typename P::Row(i * piece);
    room.lengths[place] = unsigned(tp::min(length - int64_t(i) * piece, int64_t(piece)));
  }
}

// Puts the neighbours of frontier `here` in the table.
template <class P>
TP_DEVICE void collect(const P& p, const SoloRoom<P>& room, int here, int pieces) {
  using Vertex = typename P::Vertex;
  constexpr int items = 4;
  const int share = tp::max(1, tp::min(32, (pieces + warps - 1) / warps));
  for (int first = warp_id() * share; first < pieces; first += warps * share) {
    const int i = here * room.entries + first + lane_id();
    const bool has = lane_id() < share && first + lane_id() < pieces;
    const unsigned vertex = has ? room.vertices[i] : 0, length = has ? room.lengths[i] : 0;
    const typename P::Row begin = has ? room.begins[i] : typename P::Row(0);
    expand<items>(p, Vertex(vertex), begin, length, [&](const Vertex(&from)[items], const Vertex(&to)[items]) {
#pragma unroll
      for (int k = 0; k < items; ++k) {
        const unsigned v = unsigned(to[k]);
        if (to[k] < Vertex(p.vertices) && room.reached[room.slot_of(v)] != v) room.insert(v, unsigned(from[k]));
      }
    });
  }
}

// Those of the table that no level has are `level`, and frontier `to`.
template <class P>
TP_DEVICE void settle(const P& p, const SoloRoom<P>& room, int level, int to, typename SoloRoom<P>::Count& count) {
  constexpr int items = 4;
  for (int first = 0; first < room.slots; first += items * threads) {
    unsigned v[items];
    bool wins[items];
    typename P::Row begins[items], lengths[items];
#pragma unroll
    for (int k = 0; k < items; ++k) {
      const int slot = first + k * threads + int(threadIdx.x);
      v[k] = slot < room.slots ? room.keys[slot] : SoloRoom<P>::empty;
      wins[k] = v[k] != SoloRoom<P>::empty;
      if (!wins[k]) continue;
      begins[k] = typename P::Row(p.out.begin(v[k]));  // wanted only by a winner, but then at once
      lengths[k] = typename P::Row(p.out.end(v[k])) - begins[k];
      wins[k] = p.levels[v[k]] == unreached;
    }
#pragma unroll
    for (int k = 0; k < items; ++k) {
      if (wins[k]) {
        p.levels[v[k]] = level;
        p.parents[v[k]] = room.parents[first + k * threads + int(threadIdx.x)];
        atomicOr(p.visited + v[k] / 32, 1u << v[k] % 32);
        room.reached[room.slot_of(v[k])] = v[k];
      }
      append_solo<P>(room, to, count, wins[k], v[k], begins[k], int64_t(lengths[k]));
    }
  }
}

// The vertices of a level that does not fit go to the queue.
template <class P>
TP_DEVICE Found leave(const P& p, const SoloRoom<P>& room, int level, Appender<P> appender) {
  for (int first = 0; first < room.slots; first += threads) {
    const int slot = first + int(threadIdx.x);
    const unsigned v = slot < room.slots ? room.keys[slot] : SoloRoom<P>::empty;
    appender.add(v != SoloRoom<P>::empty && p.levels[v] == level, typename P::Vertex(v));
    appender.make_room();
  }
  return appender.finish();
}

template <class P>
TP_DEVICE void enter(const P& p, const SoloRoom<P>& room, Frontier frontier) {
  for (int i = int(threadIdx.x); i < frontier.pieces; i += threads) {
    room.vertices[i] = unsigned(p.queue_vertices[frontier.begin + i]);
    room.begins[i] = p.queue_begins[frontier.begin + i];
    room.lengths[i] = p.queue_lengths[frontier.begin + i] & ~continues;
    atomicOr(p.visited + room.vertices[i] / 32, 1u << room.vertices[i] % 32);
  }
  for (int i = int(threadIdx.x); i < room.slots; i += threads) room.reached[i] = SoloRoom<P>::empty;
  if (threadIdx.x == 0) room.counts[0] = room.counts[1] = {};
}

// One block: from the frontier of `level` - 1, which fits, until one does not, which is appended, or there is none.
template <class P>
__noinline__ TP_DEVICE Found solo(const P& p, Frontier frontier, int64_t level, char* shared, Tally& tally) {
  const SoloRoom<P> room(shared, p.policy);
  enter(p, room, frontier);
  int here = 0, pieces = int(frontier.pieces);
  int64_t edges = 0;
  bool goes_on = true;
  Found left;
  for (; goes_on && level <= p.max_level; ++level) {
    for (int i = int(threadIdx.x); i < room.slots; i += threads) room.keys[i] = room.parents[i] = SoloRoom<P>::empty;
    __syncthreads();
    collect(p, room, here, pieces);
    if (threadIdx.x == 0) room.counts[(level + 1) & 1] = {};
    __syncthreads();
    here = 1 - here;
    settle(p, room, int(level), here, room.counts[level & 1]);
    __syncthreads();
    const auto found = room.counts[level & 1];
    pieces = int(found.pieces);
    goes_on = found.edges > 0 && fits_solo(p, found.pieces, found.edges);
    if (goes_on) edges += found.edges;
    if (!goes_on && found.edges > 0) left = leave(p, room, int(level), Appender<P>(p, shared, frontier.end(), tally));
  }
  if (threadIdx.x == 0) p.control->solo = {level, edges};
  return left;
}

}  // namespace tp::graph::resident
