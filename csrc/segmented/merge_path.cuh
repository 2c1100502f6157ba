// merge_path: the tiles that all its launches share. A tile is a share of the path over rows and segment ends
// (block/segments.cuh), of one strip of at most 32 columns.
//
// First launch: the splits. Second: every tile on its own. Third: what the tiles leave open; and, should any tile have
// noticed offsets that decrease or do not cover all rows, everything once more, segment by segment.
#pragma once
#include "block/segments.cuh"
#include "segmented/elements.h"

namespace tp::segmented {

// The columns, in strips of equal width.
struct Strips {
  int64_t width;
  int across, count;

  explicit Strips(int64_t width) : width(width), count(int(ceil_div(width, int64_t(block::warp_size)))) {
    across = int(ceil_div(width, int64_t(tp::max(count, 1))));
  }
  TP_DEVICE int columns(int64_t first) const { return int(tp::min(int64_t(across), width - first)); }
};

// `In` is what the rows hold, `Out` what a segment takes.
template <class In, class Out>
struct TileShape {
  static constexpr int warps = 8, threads = warps * block::warp_size;
  static constexpr int places = sizeof(In) < 4 ? 33 : 17;  // rows a stretch; odd: lanes meet in no bank
  static constexpr int end_items = int(tp::max(sizeof(In), sizeof(Out)) / sizeof(In));
  using Mark = uint16_t;

  static int rows(const Strips& strips) { return warps * (block::warp_size / strips.across) * places; }
  static block::Path path(int64_t n, int64_t segments, const Strips& strips) {
    return {n, segments, rows(strips), end_items};
  }
  TP_HD static int mark_bytes(const block::Path& path) { return ceil_div(path.items * int(sizeof(Mark)), 16) * 16; }
};

// The marks of a tile's rows, none set.
template <class Mark>
TP_DEVICE void clear_marks(Mark* marks, int bytes) {
  for (int i = int(threadIdx.x); i < bytes / 16; i += int(blockDim.x)) reinterpret_cast<uint4*>(marks)[i] = uint4{};
  __syncthreads();
}

template <class T>
TP_DEVICE T* align16(T* p) {
  return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(p) + 15) / 16 * 16);
}

// Lets a kernel have `bytes` of shared memory and launches it.
template <class Kernel, class... Params>
void launch_tiles(const char* rung, Kernel kernel, int64_t blocks, int threads, int bytes, Context& context,
                  const Params&... params) {
  require(blocks <= 2147483647, rung, ": too many tiles for one launch");
  if (bytes > 48 << 10) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  kernel<<<unsigned(blocks), threads, bytes, cudaStream_t(context.stream)>>>(params...);
  check_launch(rung);
}

}  // namespace tp::segmented
