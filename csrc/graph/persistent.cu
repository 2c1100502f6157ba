// The whole search in one cooperative launch, without a word from the host, so that a CUDA graph can hold it.
//
// The blocks stay, one to a multiprocessor, and a barrier of the grid stands between levels. Every block reads the same
// counts behind it and so comes to the same decision about the next level:
//   - a small frontier is left to one cluster, which goes on alone for as many levels as it stays small (solo.cuh);
//   - a frontier whose edges are few beside those still open is pushed, from a queue of pieces of edges that warps deal
//     evenly to their lanes (push.cuh);
//   - any other is pulled, from a bitmap (pull.cuh), where in-edges are given.
// Beamer, Asanović and Patterson (2012) found when to change the direction. Parents come with the levels: a push, by
// the grid or the lone cluster, takes the minimum of all who offer themselves, a pull the first in the row.
#include "graph/edges.h"
#ifdef __CUDACC__
#include "block/launch.cuh"
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
__global__ __launch_bounds__(threads, 1) void persistent_kernel(const __grid_constant__ P p) {
  extern __shared__ __align__(16) char room[];
  Phases phases(p.control);
  unsigned *front = p.front, *next = p.next;
  clear(p);
  phases.end();

  Frontier frontier{0, 0};
  Tally found;  // of the frontier
  // The frontier is what a phase appended; of rows that overlap, what there was room for.
  const auto advance = [&](Found mine) {
    found = phases.end(mine);
    frontier = {frontier.end(), tp::min(int64_t(found.pieces), p.capacity - frontier.end())};
  };
  advance(start(p, room, phases.tally()));
  int64_t open_edges = p.out.edges - int64_t(found.edges);
  bool queued = true;
  int small = 0;  // frontiers that would have fitted while there was a bitmap
  for (int64_t level = 1; level <= p.max_level && found.edges > 0;) {
    const bool heavy = p.pulls() && int64_t(found.edges) * p.policy.alpha > open_edges;
    const bool fits = fits_solo(p, {found.vertices, found.edges, found.vertices});
    if (!queued && (fits ? ++small > 1 : !heavy)) {  // the first small one is often the last, and so soon pulled
      advance(gather(p, front, frontier, room, phases.tally()));
      queued = true;
    }
    if (queued && fits_solo(p, found)) {
      advance(blockIdx.x < cluster_blocks() ? solo(p, frontier, level, room, phases.tally()) : Found());
      level = __ldcg(&p.control->solo.level);
      open_edges -= __ldcg(&p.control->solo.edges) + int64_t(found.edges);
      continue;
    }
    if (queued && heavy) {
      mark(p, frontier, front);
      phases.end();
      queued = false;
    }
    if (queued) {
      advance(push(p, frontier, int(level), room, phases.tally()));
    } else {
      found = phases.end(pull(p, front, next, int(level), reinterpret_cast<PullRoom*>(room)));
      unsigned* const last = front;
      front = next;
      next = last;
    }
    open_edges -= int64_t(found.edges);
    ++level;
  }
}

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

// The largest cluster that the device holds, of at most `wanted` blocks; `blocks`: how many it holds of such.
template <class Kernel>
int cluster_size(Kernel kernel, cudaLaunchConfig_t config, int wanted, int& blocks) {
  for (int size = wanted; size > 1; size /= 2) {
    config.gridDim = dim3(unsigned(size));
    config.attrs[0].val.clusterDim.x = unsigned(size);
    if (size > 8) cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    int clusters = 0;
    const bool known = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess;
    cudaGetLastError();
    if (known && clusters > 0) return blocks = clusters * size, size;
  }
  return 1;
}

// Few edges a vertex make many levels of few vertices: then a cluster of many blocks pays, though not all
// multiprocessors may be left in such. One block a multiprocessor: fewer meet at a barrier.
template <class P>
void launch(P p, Policy policy, int wanted, Context& context) {
  int blocks = block::device_attribute<cudaDevAttrMultiProcessorCount>();
  const int64_t bytes =
      tp::max(warps * int64_t(sizeof(PullRoom)), Appender<P>::room_bytes + int64_t(sizeof(SoloRoom<P>)));
  const auto kernel = persistent_kernel<P>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeCooperative;
  attributes[1].val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = size_t(bytes);
  config.stream = cudaStream_t(context.stream);
  config.attrs = attributes;
  config.numAttrs = 1;
  const int cluster = cluster_size(kernel, config, block::is_for_hopper(kernel) ? wanted : 1, blocks);
  attributes[0].val.clusterDim.x = unsigned(cluster);
  config.numAttrs = 2;
  if (cluster == 1) config.attrs = attributes + 1, config.numAttrs = 1;
  config.gridDim = dim3(unsigned(blocks));
  policy.solo_pieces = tp::min(policy.solo_pieces, cluster * int(places - unsigned(cluster)));
  policy.solo_edges = tp::min(policy.solo_edges, cluster * 2 * int(places));
  p.policy = policy;
  cudaLaunchKernelEx(&config, kernel, p);
  check_launch("persistent");
}

constexpr Policy policy{15, 1 << 14, 1 << 15};

}  // namespace resident

void persistent(const Args& args, Context& context) {
  const int cluster = args.edges < 8 * args.vertices ? 16 : 2;
  with_types(args, [&](auto row, auto id) {
    resident::launch(resident::problem_of<decltype(row), decltype(id)>(args, context), resident::policy, cluster,
                     context);
  });
}

}  // namespace tp::graph
#endif
