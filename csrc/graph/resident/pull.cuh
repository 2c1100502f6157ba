// A level of the whole grid that is pulled: whoever is not reached looks for a neighbour in the bitmap of the frontier
// and stops at the first, the smallest of a sorted row.
//
// A warp has a task of neighbouring vertices. Those not reached it lists first, so that its lanes are busy even where
// few are left. A lane looks at the first edges of its vertex alone, since most find a neighbour there; the rows that
// are longer the warp goes through together. Only this warp writes the bitmaps' words of its task.
#pragma once
#include "graph/resident/state.cuh"

namespace tp::graph::resident {

constexpr int task_words = 8, task = 32 * task_words;
constexpr int probes = 4, alone = 32;  // edges in flight at once; edges that a lane looks at alone

struct PullRoom {  // of a warp, in shared memory
  uint8_t list[task];
  unsigned found[task_words];
};
static_assert(task <= 256, "places in a task are bytes");

template <class P>
TP_DEVICE bool in_front(const P& p, const unsigned* front, typename P::Vertex v) {
  return v < typename P::Vertex(p.vertices) && (front[v / 32] >> v % 32 & 1);
}

// The first edge of begin..end to the frontier, or `end`.
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

// The same by all lanes of a warp.
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

// The places in the task that are not reached, in order; how many.
TP_DEVICE inline int list_open(unsigned open, PullRoom& room) {
  int count = 0;
#pragma unroll
  for (int w = 0; w < task_words; ++w) {
    const unsigned bits = __shfl_sync(~0u, open, w);
    if (bits >> lane_id() & 1) room.list[count + __popc(bits & ((1u << lane_id()) - 1))] = uint8_t(w * 32 + lane_id());
    count += __popc(bits);
  }
  if (lane_id() < task_words) room.found[lane_id()] = 0;
  __syncwarp();
  return count;
}

template <class P>
TP_DEVICE void pull_task(const P& p, const unsigned* front, int level, int64_t first, int count, PullRoom& room,
                         Found& all) {
  for (int i = 0; i < count; i += block::warp_size) {
    const bool has = i + lane_id() < count;
    const int place = has ? room.list[i + lane_id()] : 0;
    const int64_t vertex = first + place;
    const int64_t begin = has ? p.in.begin(vertex) : 0, end = has ? p.in.end(vertex) : 0;
    const int64_t stop = tp::min(end, begin + alone);
    int64_t hit = first_alone(p, front, begin, stop);
    bool found = hit < stop;
    unsigned rest = __ballot_sync(~0u, !found && stop < end);
    for (; rest != 0; rest &= rest - 1) {
      const int owner = __ffs(int(rest)) - 1;
      const int64_t last = block::broadcast(end, owner);
      const int64_t at = first_together(p, front, block::broadcast(stop, owner), last);
      if (lane_id() == owner) hit = at, found = at < last;
    }
    if (!found) continue;
    p.levels[vertex] = level;
    p.parents[vertex] = typename P::Word(p.in.ids[hit]);
    atomicOr(&room.found[place / 32], 1u << place % 32);
    ++all.vertices;
    all.edges += p.in.rows == p.out.rows ? end - begin : p.out.degree(vertex);
  }
  __syncwarp();
}

// Writes every word of `next`.
template <class P>
TP_DEVICE Found pull(const P& p, const unsigned* front, unsigned* next, int level, PullRoom* rooms) {
  Found all;
  PullRoom& room = rooms[warp_id()];
  const int64_t tasks = (p.vertices + task - 1) / task;
  for (int64_t t = grid_warp(); t < tasks; t += grid_warps()) {
    const int64_t word = t * task_words + lane_id();
    const unsigned seen = lane_id() < task_words ? p.visited[word] : ~0u;
    const int count = list_open(~seen, room);
    pull_task(p, front, level, t * task, count, room, all);
    if (lane_id() < task_words) {
      const unsigned found = room.found[lane_id()];
      next[word] = found;
      if (found != 0) p.visited[word] = seen | found;
    }
    __syncwarp();
  }
  return all;
}

}  // namespace tp::graph::resident
