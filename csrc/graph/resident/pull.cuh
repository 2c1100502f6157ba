// A level of the whole grid that is pulled: whoever is not reached looks for a neighbour in the bitmap of the frontier
// and stops at the first, the smallest of a sorted row.
//
// A warp has a task of neighbouring vertices. Those not reached it lists first, so that its lanes are busy even where
// few are left. Most find a neighbour among their first edges: so each gets a few probes, whoever is left is listed
// again and gets twice as many, and the rows that are longer the warp goes through together in the end. Only this warp
// writes the bitmaps' words of its task.
#pragma once
#include "graph/resident/state.cuh"

namespace tp::graph::resident {

constexpr int task_words = 8, task = 32 * task_words;
constexpr int probes = 4;  // edges in flight at once
constexpr int alone = 60;  // edges that a lane looks at by itself: 4 + 8 + 16 + 32

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
TP_DEVICE void settle_pulled(const P& p, int level, int64_t first, int place, int64_t hit, PullRoom& room,
                             Found& found) {
  const int64_t vertex = first + place;
  p.levels[vertex] = level;
  p.parents[vertex] = typename P::Word(p.in.ids[hit]);
  atomicOr(&room.found[place / 32], 1u << place % 32);
  ++found.vertices;
  found.edges += p.out.degree(vertex);
}

// Gives the vertices of the list `most` probes behind the first `skip`; lists those that have edges left, and how many.
template <class P>
TP_DEVICE int probe(const P& p, const unsigned* front, int level, int64_t first, int count, int skip, int most,
                    PullRoom& room, Found& found) {
  int left = 0;
  for (int i = 0; i < count; i += block::warp_size) {
    const bool has = i + lane_id() < count;
    const int place = has ? room.list[i + lane_id()] : 0;
    const int64_t begin = has ? p.in.begin(first + place) + skip : 0, end = has ? p.in.end(first + place) : 0;
    const int64_t stop = tp::min(end, begin + most), hit = first_alone(p, front, begin, stop);
    if (hit < stop) settle_pulled(p, level, first, place, hit, room, found);
    const unsigned stay = __ballot_sync(~0u, hit >= stop && stop < end);
    if (stay >> lane_id() & 1) room.list[left + __popc(stay & ((1u << lane_id()) - 1))] = uint8_t(place);
    left += __popc(stay);
    __syncwarp();
  }
  return left;
}

template <class P>
TP_DEVICE void pull_task(const P& p, const unsigned* front, int level, int64_t first, int count, PullRoom& room,
                         Found& found) {
  int skip = 0;
  for (int most = probes; count > 0 && skip < alone; skip += most, most *= 2)
    count = probe(p, front, level, first, count, skip, most, room, found);
  for (int i = 0; i < count; ++i) {
    const int place = room.list[i];
    const int64_t end = p.in.end(first + place);
    const int64_t hit = first_together(p, front, p.in.begin(first + place) + alone, end);
    if (hit < end && lane_id() == 0) settle_pulled(p, level, first, place, hit, room, found);
  }
  __syncwarp();
}

// Writes every word of `next`.
template <class P>
TP_DEVICE Found pull(const P& p, const unsigned* front, unsigned* next, int level, char* rooms) {
  Found found;
  PullRoom& room = reinterpret_cast<PullRoom*>(rooms)[warp_id()];
  const int64_t tasks = (p.vertices + task - 1) / task;
  for (int64_t t = grid_warp(); t < tasks; t += grid_warps()) {
    const int64_t word = t * task_words + lane_id();
    const unsigned seen = lane_id() < task_words ? p.visited[word] : ~0u;
    const int count = list_open(~seen, room);
    pull_task(p, front, level, t * task, count, room, found);
    if (lane_id() < task_words) {
      const unsigned bits = room.found[lane_id()];
      next[word] = bits;
      if (bits != 0) p.visited[word] = seen | bits;
    }
    __syncwarp();
  }
  return found;
}

}  // namespace tp::graph::resident
