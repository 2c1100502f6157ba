// What the kernels of single_pass share: a thread's running value, and the fixed trees over lanes, warps and blocks.
//
// A thread loads its elements in batches, which it holds in registers and reduces by a tree, so all loads of a batch
// are in flight at once. Floats are summed in double, so the rounding error does not grow with n.
#pragma once
#include <cooperative_groups.h>

#include "block/launch.cuh"
#include "block/load_store.cuh"
#include "block/warp.cuh"
#include "core/division.h"
#include "reduction/elements.h"

namespace tp::reduction {

// A number of blocks that keeps any device busy, 8 per multiprocessor of an H100 or H200. It is the same on every
// device, so that the order of combination depends on the shape only.
constexpr int64_t enough_blocks = 8 * 132;

// Combines x[0] to x[count - 1] pairwise, where count is a power of two.
template <class M, int count>
TP_DEVICE typename M::Acc tree(const typename M::Acc* x) {
  if constexpr (count == 1) {
    return x[0];
  } else {
    return M::combine(tree<M, count / 2>(x), tree<M, count / 2>(x + count / 2));
  }
}

template <class E>
struct Running {
  using In = typename E::Input;
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  Acc value = M::identity();

  // An element that changes nothing, which is used beyond the end of a row. Its index is never less than that of an
  // equal element.
  TP_DEVICE static In filler(bool mirrored) {
    if constexpr (M::id == OpId::sum || M::id == OpId::prod) {
      return In(acc_t<In>(M::id == OpId::prod));
    } else if constexpr (M::id == OpId::bitwise_and || M::id == OpId::bitwise_or || M::id == OpId::bitwise_xor) {
      return In(M::identity());
    } else {
      const In lowest = In(detail::lowest<acc_t<In>>());
      return mirrored ? mirror(lowest) : lowest;
    }
  }

  // Combines elements x[0] to x[count - 1], which come after all earlier ones; index(i) is the index of x[i].
  template <int count, class Index>
  TP_DEVICE void add(const In (&x)[count], bool mirrored, Index index) {
    if constexpr (M::id == OpId::argmax || M::id == OpId::logsumexp) {
      using Most = MaxOf<In>;
      typename Most::Acc each[count], most[count];
#pragma unroll
      for (int i = 0; i < count; ++i) most[i] = each[i] = operand<Most>(x[i], 0, mirrored);
      const auto top = tree<Most, count>(most);
      if constexpr (M::id == OpId::argmax) {
        const bool keep = value.value >= top || is_nan(value.value);
        if (keep && value.index != M::identity().index) return;
#pragma unroll
        for (int i = count - 1; i >= 0; --i) {
          if (each[i] == top || is_nan(each[i])) value = {each[i], index(i)};
        }
      } else {
        typename Most::Acc exponential[count];
#pragma unroll
        for (int i = 0; i < count; ++i) exponential[i] = each[i] == top ? 1 : exp(each[i] - top);
        value = M::combine(value, {top, tree<Sum<typename Most::Acc>, count>(exponential)});
      }
    } else {
      using Leaf = leaf_t<In, M>;
      typename Leaf::Acc each[count];
#pragma unroll
      for (int i = 0; i < count; ++i) each[i] = operand<Leaf>(x[i], 0, mirrored);
      value = M::combine(value, Acc(tree<Leaf, count>(each)));
    }
  }
};

// Combines every `width` lanes, where width is a power of two, at most a warp. The first of these lanes gets the
// result.
template <class M>
TP_DEVICE typename M::Acc reduce_lanes(typename M::Acc v, int width) {
  for (int stride = 1; stride < width; stride *= 2) v = M::combine(v, block::shuffle_down(v, stride));
  return v;
}

// Combines all threads of the block; thread 0 gets the result.
template <class M>
TP_DEVICE typename M::Acc reduce_block(typename M::Acc v) {
  __shared__ typename M::Acc totals[block::warp_size];
  v = block::reduce<M>(v);
  const int lane = int(threadIdx.x) % block::warp_size, warp = int(threadIdx.x) / block::warp_size;
  if (lane == 0) totals[warp] = v;
  __syncthreads();
  if (warp > 0) return v;
  v = lane < int(blockDim.x) / block::warp_size ? totals[lane] : M::identity();
  return block::reduce<M>(v);
}

// Combines the blocks of a cluster in order. Thread 0 of its first block gets the result. All threads must call
// start_cluster first.
constexpr int largest_cluster = 8;

TP_DEVICE inline void start_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;");
#endif
}

template <class M>
TP_DEVICE typename M::Acc reduce_cluster(typename M::Acc v) {
#if __CUDA_ARCH__ >= 900
  namespace cg = cooperative_groups;
  __shared__ typename M::Acc totals[largest_cluster];
  const auto cluster = cg::this_cluster();
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");  // every block has started, so its memory can be written
  if (threadIdx.x == 0) *cluster.map_shared_rank(totals + cluster.block_rank(), 0) = v;
  cluster.sync();
  if (threadIdx.x == 0 && cluster.block_rank() == 0) {
    for (unsigned i = 1; i < cluster.num_blocks(); ++i) v = M::combine(v, totals[i]);
  }
#endif
  return v;
}

// The parts of rows that are adjacent in memory: [groups, parts, between, length], and `inner` such rows beside each
// other. Without parts, a run is the whole row.
struct Runs {
  int64_t length, between;
  int parts;

  template <class E>
  Runs(const E& e, const Args& args) : length(e.n / args.parts), between(args.between), parts(int(args.parts)) {}

  // The row of run `run`, and which of its parts the run is.
  struct Part {
    int64_t row;
    int part;
  };
  TP_DEVICE Part at(int64_t run) const {
    if (parts == 1) return {run, 0};
    const int64_t all = quotient(run, between), group = quotient(all, parts);
    return {group * between + run - all * between, int(all - group * parts)};
  }
};

// Combines the totals of a row's splits, [rows, splits], into the row's result, with one block or one warp per row.
constexpr int finish_threads = 256;

template <class E>
__global__ __launch_bounds__(finish_threads) void finish_kernel(const E e, const typename E::Acc* totals, int splits,
                                                                bool by_warp) {
  using M = typename E::Monoid;
  const int threads = by_warp ? block::warp_size : finish_threads, t = int(threadIdx.x) % threads;
  const int64_t row = by_warp ? blockIdx.x * int64_t(finish_threads / block::warp_size) + threadIdx.x / block::warp_size
                              : int64_t(blockIdx.x);
  auto sum = M::identity();
  block::wait_for_launch_before();
  if (row < e.rows) {
    for (int i = t; i < splits; i += threads) sum = M::combine(sum, totals[row * splits + i]);
  }
  sum = by_warp ? block::reduce<M>(sum) : reduce_block<M>(sum);
  if (t == 0 && row < e.rows) e.out[row] = e.result(sum);
}

inline cudaLaunchAttribute cluster_of(int across, int down = 1) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {unsigned(across), unsigned(down), 1};
  return attribute;
}

template <class Kernel, class... Arguments>
void launch(Kernel kernel, dim3 blocks, int threads, cudaLaunchAttribute attribute, Context& context,
            Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = unsigned(threads);
  config.stream = cudaStream_t(context.stream);
  config.attrs = &attribute;
  config.numAttrs = attribute.id != cudaLaunchAttributeIgnore;
  cudaLaunchKernelEx(&config, kernel, arguments...);
  check_launch("single_pass");
}

template <class E>
void finish(const E& e, const typename E::Acc* totals, int splits, Context& context) {
  const bool by_warp = splits <= 128;
  const int64_t blocks = by_warp ? ceil_div(e.rows, int64_t(finish_threads / block::warp_size)) : e.rows;
  block::launch_early(finish_kernel<E>, unsigned(blocks), finish_threads, 0, context, e, totals, splits, by_warp);
  check_launch("single_pass");
}

}  // namespace tp::reduction
