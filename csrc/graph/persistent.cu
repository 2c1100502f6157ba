// The whole search in one cooperative launch that never reads back to the host, so a CUDA graph can capture it.
//
// One block per multiprocessor stays for the whole search, and a grid barrier separates the levels. After the barrier
// all blocks read the same counts, and so decide in the same way how to find the next level:
// - A small frontier goes to one cluster of blocks, which continues alone while the frontier stays small (solo.cuh).
// - A frontier is pushed if few edges leave it, compared with the edges of unvisited vertices. It is then a queue of
//   pieces of rows, whose edges each warp distributes evenly over its lanes (push.cuh).
// - Any other frontier is pulled, from a bitmap (pull.cuh), if in-edges are given.
//
// The switch to pulling follows Beamer, Asanović and Patterson (2012). Their second threshold, beta, is not used: a
// search returns to pushing as soon as the test for pulling fails, or at the second frontier in a bitmap that fits in
// the cluster. The first such frontier is pulled in any case.
//
// Parents are found together with levels: a push takes the minimum over all edges that reach a vertex, a pull takes the
// first neighbour in a sorted row.
#include "graph/edges.h"
#ifdef __CUDACC__
#include "block/launch.cuh"
#include "graph/resident/pull.cuh"
#include "graph/resident/solo.cuh"

namespace tp::graph {
namespace resident {

// Marks all vertices as unreached. If edges may be pulled, vertices without in-edges count as visited from the start.
// So do the bits beyond the last vertex.
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
  extern __shared__ __align__(16) char storage[];
  // Initialize the arrays and the frontier.
  Phases phases(p.control);
  unsigned *front = p.front, *next = p.next;
  clear(p);
  phases.end();

  Frontier frontier{0, 0};
  Tally found;  // counts of the current frontier
  // The frontier is what the last phase appended to the queue, as far as there was room: overlapping rows may exceed
  // it.
  const auto advance = [&](Found mine) {
    found = phases.end(mine);
    frontier = {frontier.end(), tp::min(int64_t(found.pieces), p.capacity - frontier.end())};
  };
  advance(start(p, storage, phases.tally()));
  int64_t open_edges = p.out.edges - int64_t(found.edges);
  bool queued = true;
  int small = 0;  // how many small frontiers in bitmaps were seen during the whole search
  for (int64_t level = 1; level <= p.max_level && found.edges > 0;) {
    // Choose how to find the next level: from which representation, and in which direction.
    const bool heavy = p.pulls() && int64_t(found.edges) * p.policy.alpha > open_edges;
    const bool fits = fits_solo(p, {found.vertices, found.edges, found.vertices});
    // The first small frontier in a bitmap is often the last one, which a pull handles at little cost, so it stays
    // there.
    if (!queued && (fits ? ++small > 1 : !heavy)) {
      advance(bitmap_to_queue(p, front, frontier, storage, phases.tally()));
      queued = true;
    }
    // A small frontier: one cluster finds as many levels as it can, while the other blocks wait at the barrier.
    if (queued && fits_solo(p, found)) {
      advance(blockIdx.x < block::cluster_blocks() ? solo(p, frontier, level, storage, phases.tally()) : Found());
      level = __ldcg(&p.control->solo.level);
      open_edges -= __ldcg(&p.control->solo.edges) + int64_t(found.edges);
      continue;
    }
    // A heavy frontier moves from the queue to the bitmap, to be pulled.
    if (queued && heavy) {
      queue_to_bitmap(p, frontier, front);
      phases.end();
      queued = false;
    }
    // Find one level, in the chosen direction.
    if (queued) {
      advance(push(p, frontier, int(level), storage, phases.tally()));
    } else {
      found = phases.end(pull(p, front, next, int(level), reinterpret_cast<PullTempStorage*>(storage)));
      unsigned* const last = front;
      front = next;
      next = last;
    }
    open_edges -= int64_t(found.edges);
    ++level;
  }
}

// Fills in the problem and allocates the workspace.
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

// Returns the size of the largest cluster, of at most `wanted` blocks, that the device can hold. `blocks` becomes the
// number of blocks that can be resident at once in clusters of that size.
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

// Launches the search, with one block per multiprocessor to keep the grid barrier short. A graph with few edges per
// vertex has many levels with few vertices, for which a cluster of many blocks is faster, even if not all
// multiprocessors can then take part.
template <class P>
void launch(P p, Policy policy, int wanted, Context& context) {
  int blocks = block::device_attribute<cudaDevAttrMultiProcessorCount>();
  const int64_t bytes = tp::max(warps * int64_t(sizeof(PullTempStorage)),
                                Appender<P>::storage_bytes + int64_t(sizeof(SoloTempStorage<P>)));
  const auto kernel = persistent_kernel<P>;
  block::allow_shared_memory(kernel, int(bytes));
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
  policy.solo_pieces = tp::min(policy.solo_pieces, cluster * int(slots - unsigned(cluster)));
  policy.solo_edges = tp::min(policy.solo_edges, cluster * 2 * int(slots));
  p.policy = policy;
  cudaLaunchKernelEx(&config, kernel, p);
  check_launch("persistent");
}

// Measured on an H200: alpha 15, as in Beamer et al.; frontiers of up to 2^14 pieces and 2^15 edges go to one cluster.
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
