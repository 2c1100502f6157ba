// What single_pass's kernels share: a thread's running value, and the fixed trees over lanes, warps and blocks.
//
// A thread takes its elements in batches that stand in registers, each reduced by a tree, so that all loads of a batch
// are in flight at once. Floats are summed in double: no chain of float32 roundings grows with n.
#pragma once
#include "block/load_store.cuh"
#include "block/warp.cuh"
#include "reduction/elements.h"

namespace tp::reduction {

template <class T>
using wide_t = typename std::conditional<is_floating<T>, double, T>::type;

// Blocks that keep any device busy. The same number everywhere: the shape alone decides the order of combination.
constexpr int64_t enough_blocks = 8 * 132;

// Combines x[0] to x[count - 1], a power of two of them, pairwise.
template <class M, int count>
TP_DEVICE typename M::Acc tree(typename M::Acc (&x)[count]) {
#pragma unroll
  for (int h = count / 2; h > 0; h /= 2) {
#pragma unroll
    for (int i = 0; i < h; ++i) x[i] = M::combine(x[i], x[i + h]);
  }
  return x[0];
}

template <class E>
struct Running {
  using In = typename E::Input;
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  Acc value = M::identity();

  // The element that changes nothing: what stands beyond an end. Its place is never smaller than that of an equal one.
  TP_DEVICE static In filler(bool mirrored) {
    if constexpr (M::id == OpId::sum || M::id == OpId::prod) {
      return In(acc_t<In>(M::id == OpId::prod));
    } else {
      const In lowest = In(detail::lowest<acc_t<In>>());
      return mirrored ? mirror(lowest) : lowest;
    }
  }

  // Elements x[0] to x[count - 1], all at later places than those before; place(i) is where x[i] stands.
  template <int count, class Place>
  TP_DEVICE void add(const In (&x)[count], bool mirrored, Place place) {
    if constexpr (M::id == OpId::argmax || M::id == OpId::logsumexp) {
      using Most = MaxOf<In>;
      typename Most::Acc each[count], most[count];
#pragma unroll
      for (int i = 0; i < count; ++i) most[i] = each[i] = operand<Most>(x[i], 0, mirrored);
      const auto top = tree<Most, count>(most);
      if constexpr (M::id == OpId::argmax) {
        const bool keep = value.value >= top || value.value != value.value;
        if (keep && value.index != M::identity().index) return;
#pragma unroll
        for (int i = count - 1; i >= 0; --i) {
          if (each[i] == top || each[i] != each[i]) value = {each[i], place(i)};
        }
      } else {
        typename Most::Acc exponential[count];
#pragma unroll
        for (int i = 0; i < count; ++i) exponential[i] = each[i] == top ? 1 : exp(each[i] - top);
        value = M::combine(value, {top, tree<Sum<typename Most::Acc>, count>(exponential)});
      }
    } else {
      Acc each[count];
#pragma unroll
      for (int i = 0; i < count; ++i) each[i] = operand<M>(x[i], 0, mirrored);
      value = M::combine(value, tree<M, count>(each));
    }
  }
};

// Lane 0 of every `width` lanes, a power of two up to a warp, gets their combination.
template <class M>
TP_DEVICE typename M::Acc reduce_lanes(typename M::Acc v, int width) {
  for (int stride = 1; stride < width; stride *= 2) v = M::combine(v, block::shuffle_down(v, stride));
  return v;
}

// Thread 0 gets the combination of the block.
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

// The next launch on the stream may start its blocks while this one runs; it waits before it reads.
TP_DEVICE inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
TP_DEVICE inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The totals of a row's splits, [rows, splits], to the row's result: by a block a row, or a warp.
constexpr int finish_threads = 256;

template <class E>
__global__ __launch_bounds__(finish_threads) void finish_kernel(const E e, const typename E::Acc* totals, int splits,
                                                                bool by_warp) {
  using M = typename E::Monoid;
  const int threads = by_warp ? block::warp_size : finish_threads, t = int(threadIdx.x) % threads;
  const int64_t row = by_warp ? blockIdx.x * int64_t(finish_threads / block::warp_size) + threadIdx.x / block::warp_size
                              : int64_t(blockIdx.x);
  auto sum = M::identity();
  wait_for_previous();
  if (row < e.rows) {
    for (int i = t; i < splits; i += threads) sum = M::combine(sum, totals[row * splits + i]);
  }
  sum = by_warp ? block::reduce<M>(sum) : reduce_block<M>(sum);
  if (t == 0 && row < e.rows) e.out[row] = e.result(sum);
}

// Whether this device overlaps launches.
inline bool overlaps_launches() {
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  return major >= 9;
}

template <class E>
void finish(const E& e, const typename E::Acc* totals, int splits, Context& context) {
  const bool by_warp = splits <= 128;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = unsigned(by_warp ? ceil_div(e.rows, int64_t(finish_threads / block::warp_size)) : e.rows);
  config.blockDim = finish_threads;
  config.stream = cudaStream_t(context.stream);
  config.attrs = &attribute;
  config.numAttrs = overlaps_launches();
  cudaLaunchKernelEx(&config, finish_kernel<E>, e, totals, splits, by_warp);
  check_launch("single_pass");
}

}  // namespace tp::reduction
