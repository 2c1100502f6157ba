// The whole search in one cooperative launch, without a word from the host, so that a CUDA graph can hold it.
//
// The blocks stay, one to a multiprocessor, and a barrier of the grid stands between levels. Every block reads the same
// counts behind it and so comes to the same decision about the next level:
//   - a small frontier is left to one block, which goes on alone for as many levels as it stays small (solo.cuh);
//   - a frontier whose edges are few beside those still open is pushed, from a queue of pieces of edges that warps deal
//     evenly to their lanes (push.cuh);
//   - any other is pulled, from a bitmap (pull.cuh), where in-edges are given.
// Beamer, Asanović and Patterson (2012) found when to change the direction. Parents come with the levels: a push takes
// the minimum of all who offer themselves, a pull the first in the row, and the lone block the minimum in its table.
#include "graph/edges.h"
#ifdef __CUDACC__
#include "graph/resident/pull.cuh"
#include "graph/resident/solo.cuh"

namespace tp::graph {
namespace resident {

// Nothing is reached; what no edge enters counts as visited where edges are pulled, and so does what is no vertex.
template <class P>
TP_DEVICE void clear(const P& p) {
  const int64_t padded = (p.vertices + task - 1) / task * task;
  constexpr int items = 4;
  static_assert(task % (items * block::warp_size) == 0, "a warp takes whole words of a task");
  for (int64_t first = grid_warp() * items * block::warp_size; first < padded;
       first += grid_warps() * items * block::warp_size) {
    bool closed[items];
#pragma unroll
    for (int k = 0; k < items; ++k) {
      const int64_t v = first + k * block::warp_size + lane_id();
      closed[k] = v >= p.vertices || (p.pulls() && p.in.rows[v] == p.in.rows[v + 1]);
    }
#pragma unroll
    for (int k = 0; k < items; ++k) {
      const int64_t v = first + k * block::warp_size + lane_id();
      const unsigned bits = __ballot_sync(~0u, closed[k]);
      if (lane_id() == 0) p.visited[v / 32] = bits, p.front[v / 32] = 0;
      if (v >= p.vertices) continue;
      p.levels[v] = unreached;
      p.parents[v] = P::no_parent;
    }
  }
}

template <class P>
__global__ __launch_bounds__(threads, 1) void persistent_kernel(const P p) {
  extern __shared__ __align__(16) char room[];
  Phases phases(p.control);
  unsigned *front = p.front, *next = p.next;
  clear(p);
  phases.end(0, 0);

  Frontier frontier{0, 0};
  Tally found;  // of the frontier
  const auto append = [&](auto phase) {
    Appender<P> appender(p, reinterpret_cast<typename P::Word*>(room), frontier.begin + frontier.pieces,
                         phases.tally());
    phase(appender);
    const Tally total = phases.end(appender.vertices, appender.edges);
    frontier = {frontier.begin + frontier.pieces,
                tp::min(int64_t(total.pieces), p.capacity - frontier.begin - frontier.pieces)};
    return total;
  };
  found = append([&](Appender<P>& a) { start(p, a); });
  int64_t open_edges = p.out.edges - int64_t(found.edges);
  bool queued = true;
  for (int64_t level = 1; level <= p.max_level && found.edges > 0;) {
    const bool heavy = p.pulls() && int64_t(found.edges) * p.policy.alpha > open_edges;
    if (!queued && (fits_solo(p, {found.vertices, found.edges, found.vertices}) || !heavy)) {
      found = append([&](Appender<P>& a) { gather(p, front, a); });
      queued = true;
    }
    if (queued && fits_solo(p, found)) {
      if (blockIdx.x == 0) solo(p, frontier, level, room);
      phases.end(0, 0);
      const Solo& after = p.control->solo;
      level = __ldcg(&after.level);
      open_edges -= __ldcg(&after.edges);
      found = {__ldcg(&after.last.vertices), __ldcg(&after.last.edges), __ldcg(&after.last.pieces)};
      frontier = {frontier.begin + frontier.pieces,
                  tp::min(int64_t(found.pieces), p.capacity - frontier.begin - frontier.pieces)};
      continue;
    }
    if (queued && heavy) {
      mark(p, frontier, front);
      phases.end(0, 0);
      queued = false;
    }
    if (queued) {
      found = append([&](Appender<P>& a) { push(p, frontier, int(level), a); });
    } else {
      unsigned long long vertices = 0, edges = 0;
      pull(p, front, next, int(level), reinterpret_cast<PullRoom*>(room), vertices, edges);
      found = phases.end(vertices, edges);
      unsigned* const last = front;
      front = next;
      next = last;
    }
    open_edges -= int64_t(found.edges);
    ++level;
  }
}

// One block a multiprocessor: fewer meet at a barrier, and there is shared memory for the lone one.
template <class Row, class Id>
Problem<Row, Id> problem_of(const Args& args, Context& context) {
  using P = Problem<Row, Id>;
  P p{};
  p.out = adjacency<Row, Id>(args.out, args);
  p.in = adjacency<Row, Id>(args.in, args);
  p.vertices = args.vertices;
  p.num_sources = args.num_sources;
  p.sources = args.sources;
  p.max_level = args.max_level;
  p.levels = args.levels;
  p.parents = static_cast<typename P::Word*>(args.parents);
  const int64_t words = ceil_div(args.vertices, int64_t(task)) * task_words;
  p.visited = context.workspace<unsigned>(words);
  p.front = context.workspace<unsigned>(words);
  p.next = context.workspace<unsigned>(words);
  p.capacity = args.vertices + args.edges / piece;
  p.queue_vertices = context.workspace<typename P::Word>(p.capacity);
  p.queue_begins = context.workspace<Row>(p.capacity);
  p.queue_lengths = context.workspace<unsigned>(p.capacity);
  p.control = context.workspace<Control>(1);
  context.clear(p.control, int64_t(sizeof(Control)));
  return p;
}

template <class P>
void launch(P p, Policy policy, Context& context) {
  int device = 0, blocks = 0, most = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  const auto bytes = [&] {
    const int64_t phases = warps * tp::max(int64_t(gathered * sizeof(typename P::Word)), int64_t(sizeof(PullRoom)));
    return tp::max(phases, SoloRoom<P>::bytes(policy));
  };
  while (bytes() > most - 1024 && policy.solo_edges > 256) policy.solo_pieces /= 2, policy.solo_edges /= 2;
  p.policy = policy;
  const auto kernel = persistent_kernel<P>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes()));
  void* arguments[] = {&p};
  cudaLaunchCooperativeKernel(kernel, dim3(unsigned(blocks)), dim3(threads), arguments, size_t(bytes()),
                              cudaStream_t(context.stream));
  check_launch("persistent");
}

constexpr Policy policy{15, 2048, 8192};

}  // namespace resident

void persistent(const Args& args, Context& context) {
  with_types(args, [&](auto row, auto id) {
    resident::launch(resident::problem_of<decltype(row), decltype(id)>(args, context), resident::policy, context);
  });
}

}  // namespace tp::graph
#endif
