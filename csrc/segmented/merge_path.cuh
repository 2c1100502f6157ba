// merge_path: the tiles that all its launches share. A tile is a share of the path over rows and segment ends
// (block/segments.cuh), of one strip of at most 32 columns.
//
// First launch: the splits. Second: every tile on its own. Third: what the tiles leave open; and, should any tile have
// noticed offsets that decrease or do not cover all rows, everything once more, segment by segment.
#pragma once
#include "block/segments.cuh"
#include "segmented/elements.h"

namespace tp::segmented {

// `In` is what a row holds, `Out` what a segment takes in shared memory.
template <class In, class Out>
struct TileShape {
  static constexpr int warps = 4, threads = warps * block::warp_size;
  static constexpr int places = sizeof(In) < 4 ? 65 : sizeof(In) == 4 ? 33 : 17;  // odd: lanes meet in no bank
  static constexpr int end_items = int(tp::max(sizeof(In), sizeof(Out)) / sizeof(In));
  using EndItems = std::integral_constant<int, end_items>;

  template <bool single>
  TP_HD static int stretches(const block::Strips<single>& strips) {
    return warps * strips.together();
  }
  template <bool single>
  TP_HD static int items(const block::Strips<single>& strips) {
    return stretches(strips) * places;
  }
  template <bool single>
  static block::Path path(int64_t n, int64_t segments, const block::Strips<single>& strips) {
    return {n, segments, items(strips), end_items};
  }
};

template <bool may_mirror>
block::Bounds<may_mirror> bounds_of(const Offsets& o) {
  return {o.are_long ? o.longs : nullptr, o.shorts, o.mirrored, o.segments, o.n};
}

// First thing in a tile: clears the first `bytes` bytes of shared memory, a multiple of 16, and waits for the splits.
template <int threads>
TP_DEVICE void start_tile(uint4* memory, int bytes, block::Arrivals& arrivals, int arrays) {
  block::allow_next_launch();
#pragma unroll
  for (int i = int(threadIdx.x); i < bytes / 16; i += threads) memory[i] = uint4{};
  if (threadIdx.x == 0) arrivals.start(arrays);
  block::wait_for_launch_before();
  __syncthreads();
}

TP_HD constexpr int align16(int bytes) { return (bytes + 15) / 16 * 16; }

// f(Strips<...>) for a width.
template <class F>
void with_strips(int64_t width, F f) {
  if (width == 1) {
    f(block::Strips<true>(width));
  } else {
    f(block::Strips<false>(width));
  }
}

// Elements whose kernels are compiled in a file of their own: merge_path_extrema.cu, lookback_extrema.cu.
template <class E>
constexpr bool is_extremum = E::Monoid::id != OpId::sum && E::Monoid::id != OpId::prod && E::Monoid::id != OpId::affine;

// Lets a kernel have `bytes` of shared memory beyond what it declares, and launches it early. Without leave it gets 48
// KB in all, and no tile declares a third of that.
template <class Kernel, class... Params>
void launch_tiles(const char* rung, Kernel kernel, int64_t blocks, int threads, int bytes, Context& context,
                  const Params&... params) {
  require(blocks <= 2147483647, rung, ": too many tiles for one launch");
  if (bytes > 32 << 10) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  block::launch_early(kernel, blocks, threads, bytes, context, params...);
  check_launch(rung);
}

}  // namespace tp::segmented
