// A warp combines the rows of one segment in order: `columns` neighbouring columns of warp_size / columns slices of
// `run` rows at a time.
#pragma once
#include "block/warp.cuh"
#include "segmented/elements.h"

namespace tp::segmented {

template <class Bound>
TP_DEVICE void reduce_segment(const Bound& x, int64_t segment, int64_t column, int columns) {
  using M = typename Bound::M;
  using Acc = typename M::Acc;
  constexpr int run = 4;
  const int lane = int(threadIdx.x) % block::warp_size, slices = block::warp_size / columns;
  const int slice = lane / columns, active = slices * columns;
  column += lane % columns;
  const int64_t end = x.offsets.end(segment);
  Acc sum = M::identity();
  for (int64_t row = x.offsets.begin(segment); row < end; row += slices * run) {
    const int64_t mine = row + slice * run;
    Acc v[run];
#pragma unroll
    for (int i = 0; i < run; ++i) v[i] = lane < active && mine + i < end ? x.load(mine + i, column) : M::identity();
#pragma unroll
    for (int i = 1; i < run; ++i) v[0] = M::combine(v[0], v[i]);
    for (int distance = columns; distance < active; distance *= 2) {
      const Acc right = block::shuffle_down(v[0], distance);
      if (lane + distance < active) v[0] = M::combine(v[0], right);
    }
    sum = M::combine(sum, v[0]);
  }
  if (lane < columns) x.store(segment, column, sum);
}

}  // namespace tp::segmented
