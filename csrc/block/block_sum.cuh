// The sum over the threads of a block by a fixed tree, so that floats give the same bits in every run.
#pragma once
#include "block/warp.cuh"
#include "core/op.h"

namespace tp::block {

// Returns the sum of all `threads` values in thread 0, and an unspecified value in all others. The caller puts a
// barrier between two calls.
template <int threads, class A>
TP_DEVICE A block_sum(A value) {
  constexpr int warps = threads / warp_size;
  static_assert(threads % warp_size == 0 && warps <= warp_size, "one warp must be able to add the sums of all warps");
  __shared__ A totals[warps];
  value = reduce<Sum<A>>(value);
  const int lane = int(threadIdx.x) % warp_size;
  if (lane == 0) totals[threadIdx.x / warp_size] = value;
  __syncthreads();
  if (threadIdx.x >= warp_size) return value;
  return reduce<Sum<A>>(lane < warps ? totals[lane] : A(0));
}

}  // namespace tp::block
