// The whole grid pulls a level: every unreached vertex looks for a neighbour in the bitmap of the frontier and stops at
// the first one, which is the smallest if its row is sorted.
//
// A warp takes a task of neighbouring vertices. It first compacts the unreached ones, so that its lanes are busy even
// if only few are left. Each lane then checks the first edges of its own vertex, since most vertices find a neighbour
// there; after that, the whole warp goes through the longer rows one by one. Only this warp writes the words of the
// bitmaps that belong to its task.
#pragma once
#include "graph/resident/state.cuh"

namespace tp::graph::resident {

constexpr int task_words = 8, task = 32 * task_words;
// The loads that a lane has in flight, and the edges of a row that one lane checks before the whole warp takes over.
constexpr int probes = 4, alone = 32;

struct PullTempStorage {  // per warp, in shared memory
  uint8_t open[task];
  unsigned found[task_words];
};
static_assert(task <= 256, "positions in a task are stored as bytes");

template <class P>
TP_DEVICE bool in_front(const P& p, const unsigned* front, typename P::Vertex v) {
  return v < typename P::Vertex(p.vertices) && (front[v / 32] >> v % 32 & 1);
}

// One lane searches a row: returns the first edge in begin..end whose other end is in the frontier, or `end`.
template <class P>
TP_DEVICE int64_t first_alone(const P& p, const unsigned* front, int64_t begin, int64_t end) {
  for (int64_t edge = begin; edge < end; edge += probes) {
    typename P::Vertex v[probes];
    bool hit[probes];
#pragma unroll
    for (int k = 0; k < probes; ++k)
      v[k] = edge + k < end ? p.neighbor(p.in.ids, edge + k) : typename P::Vertex(p.vertices);
#pragma unroll
    for (int k = 0; k < probes; ++k) hit[k] = in_front(p, front, v[k]);
#pragma unroll
    for (int k = 0; k < probes; ++k) {
      if (hit[k]) return edge + k;
    }
  }
  return end;
}

// As first_alone, by all lanes of a warp.
template <class P>
TP_DEVICE int64_t first_together(const P& p, const unsigned* front, int64_t begin, int64_t end) {
  for (int64_t edge = begin; edge < end; edge += probes * block::warp_size) {
    unsigned hits[probes];
#pragma unroll
    for (int k = 0; k < probes; ++k) {
      const int64_t mine = edge + k * block::warp_size + lane_id();
      hits[k] = mine < end && in_front(p, front, p.neighbor(p.in.ids, mine));
    }
#pragma unroll
    for (int k = 0; k < probes; ++k) {
      hits[k] = __ballot_sync(~0u, hits[k] != 0);
      if (hits[k] != 0) return edge + k * block::warp_size + __ffs(int(hits[k])) - 1;
    }
  }
  return end;
}

// Writes the positions of the task's unreached vertices to storage.open, in order, and returns their number.
TP_DEVICE inline int compact_open(unsigned open, PullTempStorage& storage) {
  int count = 0;
#pragma unroll
  for (int w = 0; w < task_words; ++w) {
    const unsigned bits = __shfl_sync(~0u, open, w);
    if (bits >> lane_id() & 1)
      storage.open[count + __popc(bits & ((1u << lane_id()) - 1))] = uint8_t(w * 32 + lane_id());
    count += __popc(bits);
  }
  if (lane_id() < task_words) storage.found[lane_id()] = 0;
  __syncwarp();
  return count;
}

// Pulls for the `count` unreached vertices of a task, one lane per vertex.
template <class P>
TP_DEVICE void pull_task(const P& p, const unsigned* front, int level, int64_t first, int count,
                         PullTempStorage& storage, Found& all) {
  for (int i = 0; i < count; i += block::warp_size) {
    const bool has = i + lane_id() < count;
    const int position = has ? storage.open[i + lane_id()] : 0;
    const int64_t vertex = first + position;
    const int64_t begin = has ? p.in.begin(vertex) : 0, end = has ? p.in.end(vertex) : 0;
    const int64_t stop = tp::min(end, begin + alone);
    // Each lane checks the first edges of its own row.
    int64_t hit = first_alone(p, front, begin, stop);
    bool found = hit < stop;
    // The whole warp searches the rest of long rows, one row after another.
    unsigned rest = __ballot_sync(~0u, !found && stop < end);
    for (; rest != 0; rest &= rest - 1) {
      const int owner = __ffs(int(rest)) - 1;
      const int64_t last = block::broadcast(end, owner);
      const int64_t at = first_together(p, front, block::broadcast(stop, owner), last);
      if (lane_id() == owner) hit = at, found = at < last;
    }
    // Label the vertices that found a neighbour.
    if (!found) continue;
    p.levels[vertex] = level;
    p.parents[vertex] = typename P::Word(p.in.ids[hit]);
    atomicOr(&storage.found[position / 32], 1u << position % 32);
    ++all.vertices;
    all.edges += p.in.rows == p.out.rows ? end - begin : p.out.degree(vertex);
  }
  __syncwarp();
}

// Pulls one level and writes every word of `next`. Returns what this lane found.
template <class P>
TP_DEVICE Found pull(const P& p, const unsigned* front, unsigned* next, int level, PullTempStorage* storages) {
  Found all;
  PullTempStorage& storage = storages[warp_id()];
  const int64_t tasks = (p.vertices + task - 1) / task;
  for (int64_t t = grid_warp(); t < tasks; t += grid_warps()) {
    const int64_t word = t * task_words + lane_id();
    const unsigned seen = lane_id() < task_words ? p.visited[word] : ~0u;
    const int count = compact_open(~seen, storage);
    pull_task(p, front, level, t * task, count, storage, all);
    if (lane_id() < task_words) {
      const unsigned found = storage.found[lane_id()];
      next[word] = found;
      if (found != 0) p.visited[word] = seen | found;
    }
    __syncwarp();
  }
  return all;
}

}  // namespace tp::graph::resident
