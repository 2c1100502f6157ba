// Phases of the whole grid that read or write the queue: the sources, a pushed level, and the ways between the queue
// and the bitmap.
#pragma once
#include "graph/resident/queue.cuh"

namespace tp::graph::resident {

// A part of the queue that is a frontier.
struct Frontier {
  int64_t begin, pieces;

  TP_DEVICE int64_t end() const { return begin + pieces; }
};

// f(vertex, begin, length) for all pieces of a frontier, one a lane and as many a warp as it takes to keep all warps
// busy; where they are few, each is cut. Lanes without one get P's number of vertices and length 0.
template <class P, class F>
TP_DEVICE void for_each_piece(const P& p, Frontier frontier, int64_t warp, int64_t all_warps, F f) {
  constexpr int most_cuts = 3;
  int cuts = 0;  // into 2^cuts parts
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

// Whoever brings down the parent of a source from none queues it.
template <class P>
TP_DEVICE Found start(const P& p, char* room, Tally& tally) {
  Appender<P> appender(p, room, 0, tally);
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

// Every edge offers its source as a parent, and who is the first to do so queues the target. A parent that stands is
// no higher than the one offered, or belongs to this level and gives way, or to an earlier one.
template <class P>
TP_DEVICE bool offer(const P& p, typename P::Vertex from, typename P::Vertex to, typename P::Word parent, int level) {
  if (parent != P::no_parent) {
    if (parent <= from) return false;
    const int theirs = __ldcg(p.levels + to);
    if (theirs != level && theirs != unreached) return false;  // not written yet: it is this level
  }
  return atomicMin(p.parents + to, typename P::Word(from)) == P::no_parent;
}

template <class P>
TP_DEVICE Found push(const P& p, Frontier frontier, int level, char* room, Tally& tally) {
  Appender<P> appender(p, room, frontier.end(), tally);
  using Vertex = typename P::Vertex;
  constexpr int items = at_once / block::warp_size;
  for_each_piece(p, frontier, grid_warp(), grid_warps(), [&](Vertex vertex, typename P::Row begin, unsigned length) {
    if (vertex < Vertex(p.vertices)) atomicOr(p.visited + vertex / 32, 1u << vertex % 32);
    expand<items>(p, vertex, begin, length, [&](const Vertex(&from)[items], const Vertex(&to)[items]) {
      bool open[items];
      typename P::Word parent[items];
#pragma unroll
      for (int k = 0; k < items; ++k)
        open[k] = to[k] < Vertex(p.vertices) && !(p.visited[to[k] / 32] >> to[k] % 32 & 1);
#pragma unroll
      for (int k = 0; k < items; ++k) parent[k] = open[k] ? __ldcg(p.parents + to[k]) : P::no_parent;
#pragma unroll
      for (int k = 0; k < items; ++k) {
        const bool wins = open[k] && offer(p, from[k], to[k], parent[k], level);
        if (wins) p.levels[to[k]] = level;
        appender.add(wins, to[k]);
      }
      appender.make_room();
    });
  });
  return appender.finish();
}

// From the queue to the bitmap `front`, which is empty.
template <class P>
TP_DEVICE void mark(const P& p, Frontier frontier, unsigned* front) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < frontier.pieces;
       i += int64_t(gridDim.x) * threads) {
    const typename P::Vertex vertex = p.queue_vertices[frontier.begin + i];
    atomicOr(front + vertex / 32, 1u << vertex % 32);
    atomicOr(p.visited + vertex / 32, 1u << vertex % 32);
  }
}

// From the bitmap `front`, which is left empty, to the queue behind the last frontier that stood there.
template <class P>
TP_DEVICE Found gather(const P& p, unsigned* front, Frontier last, char* room, Tally& tally) {
  Appender<P> appender(p, room, last.end(), tally);
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
