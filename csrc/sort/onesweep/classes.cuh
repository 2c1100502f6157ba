// Segments by length: each is noted on the list of its class, for the kernel that sorts such lengths.
#pragma once
#include "sort/onesweep/network.cuh"
#include "sort/onesweep/onesweep.h"

namespace tp::sort::device {

// Classes 0 to 8 are of up to 4, 8, ... 1024 keys, class 9 is what a block holds, class 10 the rest. Segments of one
// key are only copied.
constexpr int classes = 11, block_class = 9, long_class = 10;
constexpr int64_t least_of(int c) { return c == 0 ? 2 : c == long_class ? short_most + 1 : (int64_t(2) << c) + 1; }

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

template <class W>
TP_DEVICE int class_of(int64_t n) {
  if (n <= 4) return 0;
  if (n > short_most) return long_class;
  if (n > network_most<W>) return block_class;
  return 30 - __clz(int(n) - 1);
}

constexpr int classify_threads = 256;

template <class W>
__global__ __launch_bounds__(classify_threads) void classify_kernel(const __grid_constant__ Classify<W> a) {
  __shared__ unsigned counts[classes];
  __shared__ unsigned long long begins[classes];
  const int thread = int(threadIdx.x);
  const int64_t first = int64_t(blockIdx.x) * classify_threads + thread, step = int64_t(gridDim.x) * classify_threads;
  const auto bound = a.offsets.bind(simt::Pointers{});
  for (int64_t base = first - thread; base < a.offsets.segments; base += step) {
    const int64_t segment = base + thread;
    if (thread < classes) counts[thread] = 0;
    __syncthreads();
    int mine = -1;
    unsigned slot = 0;
    if (segment < a.offsets.segments) {
      const int64_t begin = bound.begin(segment), n = bound.end(segment) - begin;
      if (n == 1) a.moves.copy(begin);
      if (n > 1) {
        mine = class_of<W>(n);
        slot = atomicAdd(counts + mine, 1u);
      }
    }
    __syncthreads();
    if (thread < classes && counts[thread]) {
      begins[thread] = atomicAdd(a.lists.counts + thread, static_cast<unsigned long long>(counts[thread]));
    }
    __syncthreads();
    if (mine >= 0) {
      const int64_t at = int64_t(begins[mine] + slot);
      if (at < a.lists.most[mine]) a.lists.segments[mine][at] = unsigned(segment);
    }
    __syncthreads();
  }
  const int64_t before = bound.begin(0), after = bound.begin(a.offsets.segments);
  for (int64_t i = first; i < before; i += step) a.moves.copy(i);
  for (int64_t i = after + first; i < a.offsets.n; i += step) a.moves.copy(i);
}

}  // namespace tp::sort::device
