// single_pass over interleaved rows (inner > 1): elements k of neighbouring rows are neighbours in memory. A thread
// handles `width` neighbouring rows, with one load for all of them per k. The lanes of a warp take neighbouring groups
// of rows, and several k if there are fewer rows. The threads of a block that share rows take every `down`-th k; a
// block has `across` times `down` threads. Rows are split among blocks until about two blocks per multiprocessor are
// busy: more of them would take turns, and the last ones would run alone.
#include "reduction/columns.h"
#ifdef __CUDACC__
#include "reduction/running.cuh"

namespace tp::reduction {
namespace {

constexpr int threads = 256, loads = 8;

// Of the runs of all rows, which are [parts of rows, length, inner] in memory.
struct Tiling {
  int across, down;  // threads across the runs, and along them
  int64_t tiles;     // with `across` threads each
  int splits;        // of a run
  int64_t share;     // elements per split
};

// Elements k, k + step, ... of `width` runs: up to `batch` of them and before `end`, with all loads in flight at once.
template <int batch, class E, int width>
TP_DEVICE void add_elements(const E& e, const typename E::Input* first, int64_t k, int64_t end, int step,
                            Running<E> (&run)[width]) {
  using In = typename E::Input;
  using V = block::Vector<In, width>;
  const In filler = Running<E>::filler(e.mirrored);
  In x[width][batch];
#pragma unroll
  for (int u = 0; u < batch; ++u) {
#pragma unroll
    for (int i = 0; i < width; ++i) x[i][u] = filler;
    if (k + u * step >= end) continue;
    const V v = block::load_once(reinterpret_cast<const V*>(first + (k + u * step) * e.inner));
#pragma unroll
    for (int i = 0; i < width; ++i) x[i][u] = v.v[i];
  }
#pragma unroll
  for (int i = 0; i < width; ++i) run[i].add(x[i], e.mirrored, [&](int u) { return k + u * step; });
}

// Combines the sums of the blocks of a cluster, in order, into those of its first block.
template <class M, class Acc>
TP_DEVICE void add_cluster(Acc* sums, int count) {
#if __CUDA_ARCH__ >= 900
  namespace cg = cooperative_groups;
  const auto cluster = cg::this_cluster();
  cluster.sync();
  if (cluster.block_rank() == 0) {
    for (int i = int(threadIdx.x); i < count; i += threads) {
      Acc v = sums[i];
      for (unsigned b = 1; b < cluster.num_blocks(); ++b) v = M::combine(v, cluster.map_shared_rank(sums, b)[i]);
      sums[i] = v;
    }
  }
  cluster.sync();
#endif
}

template <class E, int width>
__global__ __launch_bounds__(threads, 1) void columns_kernel(const E e, const Runs runs, const Tiling tiling,
                                                             typename E::Acc* totals) {
  using In = typename E::Input;
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  __shared__ Acc sums[threads * width];
  const bool clustered = tiling.splits > 1 && !totals;
  const int down = tiling.down, x = int(threadIdx.x) % tiling.across, y = int(threadIdx.x) / tiling.across;
  const int64_t run = (blockIdx.x * int64_t(tiling.across) + x) * width, split = blockIdx.y,
                count = e.rows * runs.parts;
  const int64_t end = run < count ? tp::min(runs.length, (split + 1) * tiling.share) : 0,
                beside = quotient(run, e.inner);
  const In* first = e.in + beside * (runs.length - 1) * e.inner + run;
  if (totals) block::allow_next_launch();

  Running<E> sum[width];
  for (int64_t k = split * tiling.share + y; k < end; k += loads * down) {
    if (end - k > 2 * down) {
      add_elements<loads>(e, first, k, end, down, sum);
    } else {
      add_elements<2>(e, first, k, end, down, sum);
    }
  }

  // Reduce y over the block by a tree, for all columns at once: sums is [down][across * width].
  const int columns = tiling.across * width;
#pragma unroll
  for (int i = 0; i < width; ++i) sums[y * columns + x * width + i] = sum[i].value;
  for (int h = down / 2; h > 0; h /= 2) {
    __syncthreads();
    for (int i = int(threadIdx.x); i < h * columns; i += threads) sums[i] = M::combine(sums[i], sums[i + h * columns]);
  }
  __syncthreads();
  if (clustered) {
    add_cluster<M>(sums, columns);
    if (split != 0) return;
  }
  const int64_t start = blockIdx.x * int64_t(columns);
  for (int i = int(threadIdx.x); i < columns && start + i < count; i += threads) {
    if (totals) {
      const int64_t at = quotient(start + i, e.inner);
      const auto [row, part] = runs.at(at);
      totals[((row * e.inner + start + i - at * e.inner) * runs.parts + part) * tiling.splits + split] = sums[i];
    } else {
      e.out[start + i] = e.result(sums[i]);
    }
  }
}

// `aligned` is the width of vectors at aligned addresses. The order of sums follows from it, so their bits do not
// depend on the address.
template <int width, class E>
void reduce_columns(const E& e, const Runs& runs, int aligned, Context& context) {
  const int64_t count = e.rows * runs.parts, n = runs.length;
  Tiling t{1, 1, 0, 1, n};
  while (t.across < block::warp_size && t.across * aligned < e.inner) t.across *= 2;
  while (t.down * 2 * t.across <= threads && t.down * loads < n) t.down *= 2;
  t.across = threads / t.down;
  t.tiles = ceil_div(count, int64_t(t.across) * width);
  require(t.tiles <= max_grid, "single_pass: ", count, " rows are too many for one launch");
  // Two blocks per multiprocessor of an H100 or H200 have enough loads in flight, if these are of 16 bytes. With a few
  // blocks more, some multiprocessors have three, and the others wait for them.
  constexpr int64_t multiprocessors = 132;
  const int bytes = aligned * int(sizeof(typename E::Input));
  const int64_t enough = 2 * multiprocessors * tp::max(1, tp::min(16 / bytes, 4));
  const int64_t tiles = ceil_div(count, int64_t(t.across) * aligned), most = ceil_div(n, int64_t(t.down * loads));
  const int64_t wanted = 3 * tiles < 2 * enough ? tp::max(int64_t(2), enough / tiles) : 1;
  t.splits = int(tp::max(int64_t(1), tp::min(tp::min(most, wanted), int64_t(65535))));
  t.share = ceil_div(n, int64_t(t.splits));
  const int sums = runs.parts * t.splits;  // of a row
  const auto kernel = columns_kernel<E, width>;
  // The blocks of a cluster crowd on a few multiprocessors, which only pairs and small problems do not notice.
  const int largest = tiles * t.splits <= multiprocessors ? largest_cluster : 2;
  const bool clustered = runs.parts == 1 && t.splits > 1 && t.splits <= largest && block::is_for_hopper(kernel);
  auto* const totals = sums > 1 && !clustered ? context.workspace<typename E::Acc>(e.rows * sums) : nullptr;
  launch(kernel, dim3(unsigned(t.tiles), unsigned(t.splits)), threads,
         clustered ? cluster_of(1, t.splits) : cudaLaunchAttribute{}, context, e, runs, t, totals);
  if (totals) finish(e, totals, sums, context);
}

}  // namespace

void single_pass_columns(const Args& args, Context& context) {
  with_elements<wide_t>(args, [&](const auto& elements) {
    using E = std::decay_t<decltype(elements)>;
    constexpr int width = tp::min(16 / int(sizeof(typename E::Input)), 8),
                  bytes = width * int(sizeof(typename E::Input));
    const Runs runs(elements, args);
    const int aligned = elements.inner % width == 0 ? width : 1;
    if (aligned == width && reinterpret_cast<uintptr_t>(elements.in) % bytes == 0) {
      reduce_columns<width>(elements, runs, aligned, context);
    } else {
      reduce_columns<1>(elements, runs, aligned, context);
    }
  });
}

}  // namespace tp::reduction
#endif
