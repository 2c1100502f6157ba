// The phases of the whole grid that read or write the queue: queueing the sources, pushing a level, and converting
// between the queue and the bitmap.
#pragma once
#include "graph/resident/queue.cuh"

namespace tp::graph::resident {

// A frontier in the queue: a range of pieces.
struct Frontier {
  int64_t begin, pieces;

  TP_DEVICE int64_t end() const { return begin + pieces; }
};

// Calls f(vertex, begin, length) for all pieces of a frontier, one piece per lane. Each warp takes few enough pieces
// that all warps are busy; if there are fewer pieces than warps, each piece is divided into parts. Lanes without a
// piece pass the number of vertices and length 0.
template <class P, class F>
TP_DEVICE void for_each_piece(const P& p, Frontier frontier, int64_t warp, int64_t all_warps, F f) {
  constexpr int most_cuts = 3;
  int cuts = 0;  // each piece is cut into 2^cuts parts
  while (cuts < most_cuts && frontier.pieces << (cuts + 1) <= all_warps) ++cuts;
  const int64_t parts = frontier.pieces << cuts;
  const unsigned part = unsigned(piece) >> cuts;
  const int64_t share = tp::max(int64_t(1), tp::min(int64_t(32), (parts + all_warps - 1) / all_warps));
  for (int64_t first = warp * share; first < parts; first += all_warps * share) {
    const int64_t i = first + lane_id(), at = frontier.begin + (i >> cuts);
    if (lane_id() < share && i < parts) {
      const unsigned begin = (unsigned(i) & ((1u << cuts) - 1)) * part, length = p.queue_lengths[at];
      f(typename P::Vertex(p.queue_vertices[at]), typename P::Row(p.queue_begins[at] + typename P::Row(begin)),
        tp::min(tp::max(length, begin) - begin, part));
    } else {
      f(typename P::Vertex(p.vertices), typename P::Row(0), 0u);
    }
  }
}

// Queues the sources: the thread that first sets a source's parent queues it.
template <class P>
TP_DEVICE Found start(const P& p, char* storage, Tally& tally) {
  Appender<P> appender(p, storage, 0, tally);
  for (int64_t first = grid_warp() * block::warp_size; first < p.num_sources;
       first += grid_warps() * block::warp_size) {
    const int64_t i = first + lane_id();
    const uint64_t source = i < p.num_sources ? uint64_t(p.sources[i]) : ~uint64_t(0);
    const bool wins =
        source < uint64_t(p.vertices) && atomicMin(p.parents + source, typename P::Word(source)) == P::no_parent;
    if (wins) p.levels[source] = 0;
    appender.add(wins, typename P::Vertex(source));
    appender.make_room();
  }
  return appender.finish();
}

// Sets the parent of `to` to `from` if that is smaller than a parent of the same level. A parent from an earlier level
// stays. Returns whether this was the first parent of `to`; that thread adds the vertex to the queue, and later threads
// of the same level may still lower the parent.
template <class P>
TP_DEVICE bool lower_parent(const P& p, typename P::Vertex from, typename P::Vertex to, typename P::Word parent,
                            int level) {
  if (parent != P::no_parent) {
    if (parent <= from) return false;
    const int theirs = __ldcg(p.levels + to);
    if (theirs != level && theirs != unreached) return false;  // a level that is not written yet is this level
  }
  return atomicMin(p.parents + to, typename P::Word(from)) == P::no_parent;
}

// Pushes one level from the queue, and appends the vertices that it finds, which are the next frontier.
template <class P>
TP_DEVICE Found push(const P& p, Frontier frontier, int level, char* storage, Tally& tally) {
  Appender<P> appender(p, storage, frontier.end(), tally);
  using Vertex = typename P::Vertex;
  constexpr int items = at_once / block::warp_size;
  for_each_piece(p, frontier, grid_warp(), grid_warps(), [&](Vertex vertex, typename P::Row begin, unsigned length) {
    if (vertex < Vertex(p.vertices)) atomicOr(p.visited + vertex / 32, 1u << vertex % 32);
    expand<items>(p, vertex, begin, length, [&](const Vertex(&from)[items], const Vertex(&to)[items]) {
      bool open[items];
      typename P::Word parent[items];
// Look up which neighbours no earlier level has reached, and their parents; then try to become the parent.
#pragma unroll
      for (int k = 0; k < items; ++k)
        open[k] = to[k] < Vertex(p.vertices) && !(p.visited[to[k] / 32] >> to[k] % 32 & 1);
#pragma unroll
      for (int k = 0; k < items; ++k) parent[k] = open[k] ? __ldcg(p.parents + to[k]) : P::no_parent;
#pragma unroll
      for (int k = 0; k < items; ++k) {
        const bool wins = open[k] && lower_parent(p, from[k], to[k], parent[k], level);
        if (wins) p.levels[to[k]] = level;
        appender.add(wins, to[k]);
      }
      appender.make_room();
    });
  });
  return appender.finish();
}

// Copies a frontier from the queue to the bitmap `front`, which must be empty.
template <class P>
TP_DEVICE void queue_to_bitmap(const P& p, Frontier frontier, unsigned* front) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < frontier.pieces;
       i += int64_t(gridDim.x) * threads) {
    const typename P::Vertex vertex = p.queue_vertices[frontier.begin + i];
    atomicOr(front + vertex / 32, 1u << vertex % 32);
    atomicOr(p.visited + vertex / 32, 1u << vertex % 32);
  }
}

// Copies a frontier from the bitmap `front`, which is cleared, to the queue, after the last frontier there.
template <class P>
TP_DEVICE Found bitmap_to_queue(const P& p, unsigned* front, Frontier last, char* storage, Tally& tally) {
  Appender<P> appender(p, storage, last.end(), tally);
  const int64_t words = (p.vertices + 31) / 32;
  for (int64_t first = grid_warp() * block::warp_size; first < words; first += grid_warps() * block::warp_size) {
    const int64_t i = first + lane_id();
    unsigned bits = i < words ? front[i] : 0;
    if (bits != 0) front[i] = 0;
    while (__any_sync(~0u, bits != 0)) {
      appender.add(bits != 0, typename P::Vertex(i * 32 + __ffs(int(bits)) - 1));
      bits &= bits - 1;
      appender.make_room();
    }
  }
  return appender.finish();
}

}  // namespace tp::graph::resident
