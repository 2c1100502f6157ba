// sum_slices (slices.h) for sums that go to given indices.
#pragma once
#include "block/launch.cuh"
#include "block/slices.h"

namespace tp::block {

constexpr int slice_threads = 512;

// Sum i goes to out[index_of(i)], or is dropped if that is negative. Thread (i, j) of a block adds up every `lanes`-th
// slice of sum i, from slice j on; then the sums of the lanes are added up in a tree.
template <int lanes, class A, class T, class IndexOf>
__global__ void __launch_bounds__(slice_threads)
    add_slices(const A* sums, int64_t slices, int64_t n, T* out, const IndexOf index_of) {
  constexpr int columns = slice_threads / lanes;
  __shared__ A pool[lanes][columns];
  const int column = int(threadIdx.x) % columns, lane = int(threadIdx.x) / columns;
  const int64_t i = int64_t(blockIdx.x) * columns + column;
  A total = 0;
  wait_for_launch_before();
  if (i < n) {
    constexpr int at_once = 8;
    for (int64_t slice = lane; slice < slices; slice += lanes * at_once) {
      A parts[at_once] = {};  // loaded before any is added
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
        if (slice + k * lanes < slices) parts[k] = sums[(slice + k * lanes) * n + i];
      }
#pragma unroll
      for (const A part : parts) total += part;
    }
  }
  if constexpr (lanes > 1) {
    pool[lane][column] = total;
    for (int half = lanes / 2; half > 0; half /= 2) {
      __syncthreads();
      if (lane < half) pool[lane][column] += pool[lane + half][column];
    }
    if (lane > 0) return;
    total = pool[0][column];
  }
  if (i >= n) return;
  const int64_t at = index_of(i);
  if (at >= 0) out[at] = T(total);
}

template <class T, class IndexOf>
void sum_slices(const acc_t<T>* sums, int64_t slices, int64_t n, T* out, Context& context, const IndexOf& index_of) {
  const auto launch = [&](auto kernel, int lanes) {
    const int64_t blocks = ceil_div(n * lanes, int64_t(slice_threads));
    launch_early(kernel, unsigned(blocks), slice_threads, 0, context, sums, slices, n, out, index_of);
  };
  constexpr int64_t enough = int64_t(1) << 19;  // threads that keep an H200 busy
  if (slices < 8 || n * 4 > enough) {
    launch(add_slices<1, acc_t<T>, T, IndexOf>, 1);
  } else {
    n * 16 > enough ? launch(add_slices<4, acc_t<T>, T, IndexOf>, 4) : launch(add_slices<16, acc_t<T>, T, IndexOf>, 16);
  }
  check_launch("sum_slices");
}

}  // namespace tp::block
