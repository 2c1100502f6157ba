// One cluster of blocks finds level after level alone, while the other blocks wait: with a small frontier, a level
// costs one barrier of the cluster and none of the grid.
//
// Each block holds its part of the frontier in shared memory. The thread that claims a vertex labels it and hands it
// out at once: the vertices that a block finds go to the blocks of the cluster in turn, each to a slot that no other
// block writes.
#pragma once
#include "block/cluster.cuh"
#include "graph/resident/push.cuh"

namespace tp::graph::resident {

// How many vertices a block can hold, and the most blocks of a cluster.
constexpr unsigned slots = 1024, most_blocks = 16;
// The lanes that share a row, and the edges that each of them takes before the whole warp takes over.
constexpr unsigned row_lanes = 4, alone_steps = 4;

// The shared memory of each block of the cluster, for graphs with fewer than 2^32 - 1 vertices. Of the vertices that
// block b hands to this block, number i is in slot i * blocks + b.
template <class P>
struct SoloTempStorage {
  struct List {
    typename P::Row begins[slots];
    unsigned vertices[slots], lengths[slots];
    unsigned found[most_blocks],
        edges[most_blocks];  // for each block of the cluster: how many vertices it found, and how many edges leave them
  };
  List lists[2];          // the current frontier and the next one
  unsigned found, edges;  // what this block found
};

// Whether a frontier is small enough for one cluster. Then the counts of every level that is found from it fit in 32
// bits.
template <class P>
TP_DEVICE bool fits_solo(const P& p, const Tally& t) {
  return t.edges <= unsigned(p.policy.solo_edges) && t.pieces <= unsigned(p.policy.solo_pieces) &&
         p.vertices < int64_t(~0u);
}

// Block `from` hands out `found` vertices in turn, starting with itself. Returns how many of them go to block `to`.
TP_DEVICE inline unsigned dealt(unsigned found, unsigned from, unsigned to, unsigned blocks) {
  const unsigned turn = (to - from) & (blocks - 1);
  return (found + blocks - 1 - turn) >> (__ffs(int(blocks)) - 1);
}

// The end of the slots that hold the vertices which block `from` handed to this block.
template <class List>
TP_DEVICE unsigned slots_of(const List& list, unsigned from) {
  const unsigned blocks = block::cluster_blocks();
  return dealt(list.found[from], from, block::cluster_rank(), blocks) * blocks;
}

// The number of edges that leave a level, and the largest number of vertices that any block handed to this one.
struct Extent {
  unsigned edges, rounds;
};
template <class List>
TP_DEVICE Extent extent(const List& list) {
  const unsigned blocks = block::cluster_blocks(), from = unsigned(lane_id());
  const unsigned found = from < blocks ? list.found[from] : 0, edges = from < blocks ? list.edges[from] : 0;
  const unsigned mine = from < blocks ? dealt(found, from, block::cluster_rank(), blocks) : 0;
  return {__reduce_add_sync(~0u, edges), __reduce_max_sync(~0u, mine)};
}

// Each lane has at most one edge, and claims its target if no earlier level has reached it. The vertices that are won
// are handed out; if there is no slot for one, it goes to the queue, and the level then counts as too large.
template <class P>
TP_DEVICE void claim(const P& p, SoloTempStorage<P>& storage, int next, int level, bool has, unsigned from,
                     int64_t edge, Appender<P>& appender) {
  using Row = typename P::Row;
  using Word = typename P::Word;
  const auto to = has ? p.neighbor(p.out.ids, edge) : typename P::Vertex(p.vertices);
  bool wins = false;
  Row begin = 0, length = 0;
  if (to < typename P::Vertex(p.vertices)) {
    const int theirs = __ldcg(p.levels + to);
    if (theirs == unreached || theirs == level) {
      begin = Row(p.out.begin(int64_t(to)));
      length = Row(p.out.end(int64_t(to))) - begin;
      wins = atomicMin(p.parents + to, Word(from)) == P::no_parent;
    }
  }
  // Label the new vertices. Those without out-edges count as visited at once, because nobody will expand them.
  if (!__any_sync(~0u, wins)) return;
  if (wins) {
    p.levels[to] = level;
    if (length == 0) atomicOr(p.visited + to / 32, 1u << to % 32);
  }
  // Count the vertices that have to be expanded, and number them within the block.
  const bool goes_on = wins && length != 0;
  const unsigned winners = __ballot_sync(~0u, goes_on);
  const unsigned leaving = length > Row(piece) ? unsigned(p.policy.solo_edges) + 1 : unsigned(length);
  const unsigned edges = __reduce_add_sync(~0u, goes_on ? leaving : 0);
  unsigned number = 0;
  if (lane_id() == 0 && winners != 0) {
    number = atomicAdd(&storage.found, unsigned(__popc(winners)));
    atomicAdd(&storage.edges, edges);
  }
  number = __shfl_sync(~0u, number, 0) + unsigned(__popc(winners & ((1u << lane_id()) - 1)));
  // Hand them out to the blocks of the cluster in turn.
  const unsigned blocks = block::cluster_blocks(), slot = (number & ~(blocks - 1)) + block::cluster_rank();
  if (goes_on && slot < slots) {
    const unsigned block = (number + block::cluster_rank()) & (blocks - 1);
    auto& list = storage.lists[next];
    block::cluster_store(list.vertices + slot, block, unsigned(to));
    block::cluster_store(list.lengths + slot, block, unsigned(tp::min(int64_t(length), int64_t(piece) + 1)));
    block::cluster_store(list.begins + slot, block, begin);
  }
  // A vertex for which there is no slot goes to the queue, and makes the level count as too large.
  const bool too_many = goes_on && slot >= slots;
  if (!__any_sync(~0u, too_many)) return;
  if (too_many) atomicAdd(&storage.edges, unsigned(p.policy.solo_edges) + 1);
  appender.add(too_many, to);
  appender.make_room();
}

// Claims the neighbours of the block's part of the frontier. A few lanes take the first edges of a row; the whole warp
// takes the rest.
template <class P>
TP_DEVICE void expand_solo(const P& p, SoloTempStorage<P>& storage, int here, unsigned rounds, int level,
                           Appender<P>& appender) {
  using Row = typename P::Row;
  constexpr unsigned rows = block::warp_size / row_lanes, alone = row_lanes * alone_steps;
  const auto& list = storage.lists[here];
  const unsigned blocks = block::cluster_blocks();
#pragma unroll 1
  for (unsigned first = unsigned(warp_id()) * rows; first < rounds * blocks; first += warps * rows) {
    const unsigned i = first + unsigned(lane_id()) / row_lanes, lane = unsigned(lane_id()) % row_lanes;
    const bool has = i < rounds * blocks && i < slots_of(list, i & (blocks - 1));
    const unsigned vertex = has ? list.vertices[i] : 0, length = has ? list.lengths[i] : 0;
    const Row begin = has ? list.begins[i] : Row(0);
    if (has && lane == 0) atomicOr(p.visited + vertex / 32, 1u << vertex % 32);
    const unsigned most = __reduce_max_sync(~0u, tp::min(length, alone));
#pragma unroll 1
    for (unsigned j = lane; j - lane < most; j += row_lanes)
      claim(p, storage, 1 - here, level, j < tp::min(length, alone), vertex, int64_t(begin + Row(j)), appender);
    for (unsigned rest = __ballot_sync(~0u, lane == 0 && length > alone); rest != 0; rest &= rest - 1) {
      const int owner = __ffs(int(rest)) - 1;
      const unsigned source = __shfl_sync(~0u, vertex, owner), all = __shfl_sync(~0u, length, owner);
      const Row its_begin = block::broadcast(begin, owner);
#pragma unroll 1
      for (unsigned j = alone; j < all; j += block::warp_size) {
        const unsigned mine = j + unsigned(lane_id());
        claim(p, storage, 1 - here, level, mine < all, source, int64_t(its_begin + Row(mine)), appender);
      }
    }
  }
}

// Tells all blocks of the cluster how much this one found, resets its counts, and waits for all blocks.
template <class P>
TP_DEVICE void exchange_counts(SoloTempStorage<P>& storage, int next) {
  __syncthreads();
  if (warp_id() == 0) {
    const unsigned to = unsigned(lane_id()), found = storage.found, edges = storage.edges;
    if (to < block::cluster_blocks()) {
      block::cluster_store(storage.lists[next].found + block::cluster_rank(), to, found);
      block::cluster_store(storage.lists[next].edges + block::cluster_rank(), to, edges);
    }
    __syncwarp();
    if (to == 0) storage.found = storage.edges = 0;
  }
  block::cluster_barrier();
}

// Takes the frontier from the queue. Piece n is handed out as if block n % blocks had found it.
template <class P>
TP_DEVICE void enter(const P& p, SoloTempStorage<P>& storage, Frontier frontier) {
  static_assert(slots == threads, "one thread per slot is needed to take the frontier");
  const unsigned blocks = block::cluster_blocks(), rank = block::cluster_rank(), slot = threadIdx.x;
  const unsigned from = slot & (blocks - 1), turn = (rank - from) & (blocks - 1);
  auto& list = storage.lists[0];
  const int64_t n = int64_t((slot & ~(blocks - 1)) + turn) * blocks + from;
  if (n < frontier.pieces) {
    const int64_t at = frontier.begin + n;
    list.vertices[slot] = unsigned(p.queue_vertices[at]);
    list.begins[slot] = p.queue_begins[at];
    list.lengths[slot] = p.queue_lengths[at];
  }
  if (slot < blocks) list.found[slot] = dealt(unsigned(frontier.pieces), 0, slot, blocks), list.edges[slot] = 0;
  if (slot == 0) storage.found = storage.edges = 0;
  block::cluster_barrier();
}

// Returns the frontier to the queue, for the whole grid.
template <class P>
TP_DEVICE void leave(const SoloTempStorage<P>& storage, int here, unsigned rounds, Appender<P>& appender) {
  const auto& list = storage.lists[here];
  const unsigned blocks = block::cluster_blocks(), end = tp::min(rounds * blocks, slots);
  for (unsigned first = unsigned(warp_id()) * block::warp_size; first < end; first += threads) {
    const unsigned i = first + unsigned(lane_id());
    const bool has = i < end && i < slots_of(list, i & (blocks - 1));
    appender.add(has, typename P::Vertex(has ? list.vertices[i] : 0));
    appender.make_room();
  }
}

// Finds levels from the frontier of `level` - 1, which must be small enough, until a frontier is too large or empty. A
// frontier that is too large is appended to the queue.
template <class P>
TP_DEVICE Found solo(const P& p, Frontier frontier, int64_t level, char* shared, Tally& tally) {
  SoloTempStorage<P>& storage = *reinterpret_cast<SoloTempStorage<P>*>(shared + Appender<P>::storage_bytes);
  Appender<P> appender(p, shared, frontier.end(), tally);
  enter(p, storage, frontier);
  const unsigned limit = unsigned(p.policy.solo_edges);
  int64_t edges = 0;
  int here = 0;
  Extent now = extent(storage.lists[0]);
  do {
    expand_solo(p, storage, here, now.rounds, int(level), appender);
    here = 1 - here;
    exchange_counts(storage, here);
    now = extent(storage.lists[here]);
    if (now.edges <= limit) edges += now.edges;
    ++level;
  } while (now.edges > 0 && now.edges <= limit && level <= p.max_level);
  if (now.edges > limit) leave(storage, here, now.rounds, appender);
  if (block::cluster_rank() == 0 && threadIdx.x == 0) p.control->solo = {level, edges};
  return appender.finish();
}

}  // namespace tp::graph::resident
