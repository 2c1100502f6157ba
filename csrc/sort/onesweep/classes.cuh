// Divides segments into classes by length. The launch that reads the offsets sorts segments of up to 16 keys itself,
// and appends longer segments to the list of their class, for the kernel that sorts such lengths.
#pragma once
#include "sort/onesweep/block_sort.cuh"
#include "sort/onesweep/lane_sort.cuh"
#include "sort/onesweep/onesweep.h"

namespace tp::sort::device {

static_assert(least_of(0) == lane_most + 1);

template <class W>
struct Classify {
  Moves<W> moves;
  Lists lists;
  Ends ends;
};

constexpr int classify_threads = 128, classify_items = 8;

// Copies the keys before the first segment and after the last.
template <class W>
TP_DEVICE void copy_outside(const Classify<W>& a, int64_t before, int64_t after) {
  const int64_t first = int64_t(blockIdx.x) * classify_threads + int(threadIdx.x);
  const int64_t stride = int64_t(gridDim.x) * classify_threads;
  for (int64_t i = first; i < before; i += stride) a.moves.copy(i);
  for (int64_t i = after + first; i < a.lists.offsets.n; i += stride) a.moves.copy(i);
}

template <class W, bool indexed>
__global__ __launch_bounds__(classify_threads, 8) void classify_kernel(const __grid_constant__ Classify<W> a) {
  constexpr int share = classify_threads * classify_items;
  __shared__ unsigned counts[classes];
  __shared__ unsigned long long list_begins[classes];
  __shared__ int64_t begins[share + 1];
  using Sorter = LaneSorter<W, indexed>;
  __shared__ typename Sorter::Shared pool[classify_threads / block::warp_size];
  const int thread = int(threadIdx.x), lane = thread % block::warp_size, warp = network_warp();
  block::allow_next_launch();
  const auto bound = a.lists.offsets.bind(simt::Pointers{});
  const int64_t segments = a.lists.offsets.segments, step = int64_t(gridDim.x) * share;
  for (int64_t base = int64_t(blockIdx.x) * share; base < segments; base += step) {
    // Read the offsets of this block's segments. Segments after the last one are empty.
#pragma unroll
    for (int k = 0; k < classify_items; ++k) {
      begins[k * classify_threads + thread] = bound.inside(tp::min(base + k * classify_threads + thread, segments));
    }
    if (thread == 0) begins[share] = bound.inside(tp::min(base + share, segments));
    if (thread < classes) counts[thread] = 0;
    __syncthreads();
    // Counting the long segments per class also gives each its slot within the block.
    const auto length = [&](int k) {
      const int64_t* const at = begins + k * classify_threads + thread;
      return tp::max(at[1] - at[0], int64_t(0));
    };
    unsigned slot[classify_items];
#pragma unroll
    for (int k = 0; k < classify_items; ++k) {
      if (length(k) > lane_most) slot[k] = atomicAdd(counts + class_of(length(k)), 1u);
    }
    // Reserve room in the lists, by one atomic per block and class.
    __syncthreads();
    if (thread < classes && counts[thread]) {
      list_begins[thread] = atomicAdd(a.lists.counts + thread, static_cast<unsigned long long>(counts[thread]));
    }
    __syncthreads();
    // Append the long segments to their lists. Sort the short ones, a warp's 32 neighbouring segments at a time.
#pragma unroll
    for (int k = 0; k < classify_items; ++k) {
      if (length(k) <= lane_most) continue;
      const int c = class_of(length(k));
      const int64_t at = int64_t(list_begins[c] + slot[k]);
      if (at >= a.lists.most[c]) continue;
      if (c == long_class) {
        a.lists.longest[at] = unsigned(base + k * classify_threads + thread);
      } else {
        a.lists.ranges[c][at] = Range::of(begins[k * classify_threads + thread], int(length(k)));
      }
    }
#pragma unroll 1
    for (int k = 0; k < classify_items; ++k) {
      Sorter(a.moves, pool[warp], lane, begins[k * classify_threads + thread], length(k))
          .run(__any_sync(~0u, length(k) > lane_most));
    }
    __syncthreads();
  }
  copy_outside(a, a.ends.first ? bound.begin(0) : 0, a.ends.last ? bound.begin(segments) : a.lists.offsets.n);
}

}  // namespace tp::sort::device
