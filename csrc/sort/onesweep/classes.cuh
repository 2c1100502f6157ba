// Divides segments into classes by length. The launch that reads the offsets sorts segments of up to 16 keys itself,
// and appends longer segments to the list of their class, for the kernel that sorts such lengths.
#pragma once
#include "sort/onesweep/block_sort.cuh"
#include "sort/onesweep/lane_sort.cuh"
#include "sort/onesweep/onesweep.h"

namespace tp::sort::device {

constexpr int64_t least_of(int c) { return (int64_t(lane_most) << c) + 1; }
static_assert(least_of(long_class) == short_most + 1, "each class has twice the length of the one before");

template <class W>
struct Classify {
  Moves<W> moves;
  Lists lists;
  Ends ends;
};

TP_DEVICE inline int class_of(int64_t n) { return n > short_most ? long_class : 27 - __clz(int(n) - 1); }

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
  __shared__ int64_t begins[classify_items][classify_threads];
  __shared__ int lengths[classify_items][classify_threads];  // clamped to lane_most + 1
  using Sorter = LaneSorter<W, indexed>;
  __shared__ typename Sorter::Shared pool[classify_threads / block::warp_size];
  const int thread = int(threadIdx.x), warp = thread / block::warp_size, lane = thread % block::warp_size;
  block::allow_next_launch();
  // Read the offsets of this block's segments. Counting the long ones per class also gives each segment its slot within
  // the block.
  const auto bound = a.lists.offsets.bind(simt::Pointers{});
  const int64_t segments = a.lists.offsets.segments, step = int64_t(gridDim.x) * share;
  for (int64_t base = int64_t(blockIdx.x) * share; base < segments; base += step) {
    if (thread < classes) counts[thread] = 0;
    __syncthreads();
    int64_t length[classify_items];
    unsigned slot[classify_items];
#pragma unroll
    for (int k = 0; k < classify_items; ++k) {
      const int64_t segment = base + k * classify_threads + thread, begin = bound.begin(segment);
      length[k] = segment < segments ? bound.end(segment) - begin : 0;
      begins[k][thread] = begin;
      lengths[k][thread] = int(tp::min(length[k], int64_t(lane_most + 1)));
    }
#pragma unroll
    for (int k = 0; k < classify_items; ++k) {
      if (length[k] > lane_most) slot[k] = atomicAdd(counts + class_of(length[k]), 1u);
    }
    // Reserve room in the lists, by one atomic per block and class.
    __syncthreads();
    if (thread < classes && counts[thread]) {
      list_begins[thread] = atomicAdd(a.lists.counts + thread, static_cast<unsigned long long>(counts[thread]));
    }
    __syncthreads();
// Append the long segments to their lists.
#pragma unroll
    for (int k = 0; k < classify_items; ++k) {
      if (length[k] <= lane_most) continue;
      const int c = class_of(length[k]);
      const int64_t at = int64_t(list_begins[c] + slot[k]);
      if (at < a.lists.most[c]) a.lists.segments[c][at] = unsigned(base + k * classify_threads + thread);
    }
// Sort the short segments, one lane per segment, a warp's 32 neighbouring segments at a time.
#pragma unroll 1
    for (int k = 0; k < classify_items; ++k) {
      Sorter(a.moves, pool[warp], lane, begins[k][thread], lengths[k][thread]).run();
    }
    __syncthreads();
  }
  copy_outside(a, a.ends.first ? bound.begin(0) : 0, a.ends.last ? bound.begin(segments) : a.lists.offsets.n);
}

}  // namespace tp::sort::device
