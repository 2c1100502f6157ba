// Segments by length: each is noted on the list of its class, for the kernel that sorts such lengths.
#pragma once
#include "sort/onesweep/block_sort.cuh"
#include "sort/onesweep/network.cuh"
#include "sort/onesweep/onesweep.h"

namespace tp::sort::device {

// Classes 0 to 7 are of up to 4, 8, ... 512 keys, 8 and 9 of what a small and a large block hold, and 10 the rest.
// Segments of one key are only copied.
constexpr int classes = 11, small_block_class = 8, block_class = 9, long_class = 10;
constexpr int64_t least_of(int c) {
  return c == 0             ? 2
         : c == block_class ? small_block_most + 1
         : c == long_class  ? short_most + 1
                            : (int64_t(2) << c) + 1;
}

struct Lists {
  unsigned* segments[classes];
  int64_t most[classes];  // none is longer, if segments do not overlap; what would be is left out
  unsigned long long* counts;
};

template <class W>
struct Classify {
  Moves<W> moves;
  block::Offsets offsets;
  Lists lists;
};

TP_DEVICE inline int class_of(int64_t n) {
  if (n <= 4) return 0;
  if (n > network_most) return n > short_most ? long_class : n > small_block_most ? block_class : small_block_class;
  return 30 - __clz(int(n) - 1);
}

constexpr int classify_threads = 256, classify_items = 4;

template <class W>
__global__ __launch_bounds__(classify_threads) void classify_kernel(const __grid_constant__ Classify<W> a) {
  constexpr int share = classify_threads * classify_items;
  __shared__ unsigned counts[classes];
  __shared__ unsigned long long begins[classes];
  const int thread = int(threadIdx.x);
  const auto bound = a.offsets.bind(simt::Pointers{});
  const int64_t segments = a.offsets.segments, step = int64_t(gridDim.x) * share;
  for (int64_t base = int64_t(blockIdx.x) * share; base < segments; base += step) {
    if (thread < classes) counts[thread] = 0;
    __syncthreads();
    int mine[classify_items];
    unsigned slot[classify_items];
#pragma unroll
    for (int k = 0; k < classify_items; ++k) {
      const int64_t segment = base + k * classify_threads + thread;
      mine[k] = -1;
      if (segment >= segments) continue;
      const int64_t begin = bound.begin(segment), n = bound.end(segment) - begin;
      if (n == 1) a.moves.copy(begin);
      if (n > 1) mine[k] = class_of(n);
    }
#pragma unroll
    for (int k = 0; k < classify_items; ++k) {
      if (mine[k] >= 0) slot[k] = atomicAdd(counts + mine[k], 1u);
    }
    __syncthreads();
    if (thread < classes && counts[thread]) {
      begins[thread] = atomicAdd(a.lists.counts + thread, static_cast<unsigned long long>(counts[thread]));
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < classify_items; ++k) {
      if (mine[k] < 0) continue;
      const int64_t at = int64_t(begins[mine[k]] + slot[k]);
      if (at < a.lists.most[mine[k]]) a.lists.segments[mine[k]][at] = unsigned(base + k * classify_threads + thread);
    }
    __syncthreads();
  }
  const int64_t first = int64_t(blockIdx.x) * classify_threads + thread, stride = int64_t(gridDim.x) * classify_threads;
  const int64_t before = bound.begin(0), after = bound.begin(segments);
  for (int64_t i = first; i < before; i += stride) a.moves.copy(i);
  for (int64_t i = after + first; i < a.offsets.n; i += stride) a.moves.copy(i);
}

}  // namespace tp::sort::device
