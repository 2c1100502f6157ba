// The second half of every wgrad on CUDA: blocks leave sums over slices of the batch, [slices][n]; here they are added
// up, in an order that their number alone gives, and rounded once.
#pragma once
#include "core/context.h"
#include "core/simt.h"

namespace tp::conv {

// Thread (i, j) of a block adds up the slices j, j + slice_lanes, ... of one sum; then the lanes' sums are halved.
constexpr int slice_lanes = 16, slice_sums = 32;

// Sum i goes to out[place(i)], or nowhere if that is negative.
template <class A, class T, class Place>
__global__ void __launch_bounds__(slice_lanes* slice_sums)
    add_slices(const A* sums, int64_t slices, int64_t n, T* out, const Place place) {
  __shared__ A pool[slice_lanes][slice_sums];
  const int column = int(threadIdx.x) % slice_sums, lane = int(threadIdx.x) / slice_sums;
  const int64_t i = int64_t(blockIdx.x) * slice_sums + column;
  A total = 0;
  if (i < n) {
#pragma unroll 8
    for (int64_t slice = lane; slice < slices; slice += slice_lanes) total += sums[slice * n + i];
  }
  pool[lane][column] = total;
  for (int half = slice_lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) pool[lane][column] += pool[lane + half][column];
  }
  if (lane > 0 || i >= n) return;
  const int64_t at = place(i);
  if (at >= 0) out[at] = T(pool[0][column]);
}

struct SamePlace {
  TP_HD int64_t operator()(int64_t i) const { return i; }
};

template <class A, class T, class Place = SamePlace>
void sum_slices(const A* sums, int64_t slices, int64_t n, T* out, Context& context, const Place& place = {}) {
  const int64_t blocks = ceil_div(n, int64_t(slice_sums));  // filters are never so many that an int does not count them
  add_slices<<<unsigned(blocks), slice_lanes * slice_sums, 0, cudaStream_t(context.stream)>>>(sums, slices, n, out,
                                                                                              place);
  check_launch("sum_slices");
}

}  // namespace tp::conv
