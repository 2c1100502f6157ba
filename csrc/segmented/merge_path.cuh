// merge_path: what all its launches share. A tile is a share of the path over rows and segment ends
// (block/segments.cuh), for one strip of at most 32 columns.
//
// The first launch finds where tiles begin, the second processes every tile independently, and the third completes the
// segments that cross tiles, if the step combines rows. If a tile detected offsets that decrease or do not cover all
// rows, the third launch does everything again: segment by segment, or row by row in step expand, where it has nothing
// else to do.
#pragma once
#include "block/segments.cuh"
#include "segmented/elements.h"

namespace tp::segmented {

// The shape of a tile. `In` is the type of a row's value, `Out` the type of a segment's result in shared memory.
template <class In, class Out>
struct TileShape {
  static constexpr int warps = 4, threads = warps * block::warp_size;
  static constexpr int slice_rows = sizeof(In) < 4    ? 65
                                    : sizeof(In) == 4 ? 33
                                                      : 17;  // odd, so that lanes never conflict on a bank
  static constexpr int end_items = int(tp::max(sizeof(In), sizeof(Out)) / sizeof(In));
  using EndItems = std::integral_constant<int, end_items>;

  template <bool single>
  TP_HD static int slices(const block::Strips<single>& strips) {
    return warps * strips.together();
  }
  template <bool single>
  TP_HD static int items(const block::Strips<single>& strips) {
    return slices(strips) * slice_rows;
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

// Starts a tile: clears the first `bytes` bytes of shared memory, a multiple of 16, and waits for the previous launch.
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

// Calls f(Strips<...>) for a width; for width 1 the number of columns is known at compile time.
template <class F>
void with_strips(int64_t width, F f) {
  if (width == 1) {
    f(block::Strips<true>(width));
  } else {
    f(block::Strips<false>(width));
  }
}

// Elements of operators other than sums, products and recurrences, whose kernels are compiled in files of their own:
// merge_path_other_ops.cu, lookback_other_ops.cu.
template <class E>
constexpr bool is_compiled_separately =
    E::Monoid::id != OpId::sum && E::Monoid::id != OpId::prod && E::Monoid::id != OpId::affine;

// Stores every row by the value of its segment, with one thread per row: what a last launch does if the offsets were
// bad.
template <class E>
TP_DEVICE void store_rows(const E& e) {
  const auto x = e.bind(simt::Pointers{});
  const int64_t all = int64_t(gridDim.x) * blockDim.x;
  for (int64_t row = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; row < e.n; row += all) {
    const int64_t segment = x.offsets.find(row);
    for (int64_t c = 0; c < e.width; ++c) x.store(row, c, x.value(segment, c));
  }
}

// Launches a tile kernel, which may start early. Requests more shared memory than the default of 48 KB where a tile
// needs it; the statically declared part of a tile takes less than a third of that.
template <class Kernel, class... Params>
void launch_tiles(const char* rung, Kernel kernel, int64_t blocks, int threads, int bytes, Context& context,
                  const Params&... params) {
  require(blocks <= max_grid, rung, ": too many tiles for one launch");
  if (bytes > 32 << 10) block::allow_shared_memory(kernel, bytes);
  block::launch_early(kernel, blocks, threads, bytes, context, params...);
  check_launch(rung);
}

}  // namespace tp::segmented
