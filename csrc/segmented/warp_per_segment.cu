// One warp per segment: its lanes read neighbouring rows, and combine their values by shuffles. Segments of many times
// 32 rows are read at the speed of memory, unless one is much longer than the others; short segments leave most lanes
// idle.
#include "segmented/elements.h"
#ifdef __CUDACC__
#include "segmented/merge_path.cuh"
#include "segmented/warp_segment.cuh"

namespace tp::segment_reduce {
namespace {

using namespace segmented;
constexpr int threads = 256, warps = threads / block::warp_size;

// Calls f(segment, first column, columns) for all segments from `first` on and all strips of columns, with one warp per
// call.
template <class F>
TP_DEVICE void each_strip(int64_t first, int64_t segments, const block::Strips<false>& strips, F f) {
  const int64_t all = int64_t(gridDim.x) * warps;
  for (int64_t i = int64_t(blockIdx.x) * warps + threadIdx.x / block::warp_size; i < segments * strips.count();
       i += all) {
    const int64_t column = i % strips.count() * strips.across();
    f(first + i / strips.count(), column, strips.columns(column));
  }
}

template <class E>
__global__ __launch_bounds__(threads) void reduce(const E e, const block::Strips<false> strips) {
  const auto x = e.bind(simt::Pointers{});
  each_strip(0, e.segments, strips,
             [&](int64_t segment, int64_t column, int columns) { reduce_segment(x, segment, column, columns); });
}

// The rows before the first segment and after the last one count as two more segments.
template <class E>
__global__ __launch_bounds__(threads) void expand(const E e, const block::Strips<false> strips) {
  const auto x = e.bind(simt::Pointers{});
  each_strip(-1, e.segments + 2, strips, [&](int64_t segment, int64_t column, int columns) {
    const int lane = int(threadIdx.x) % block::warp_size, together = block::warp_size / columns;
    if (lane >= together * columns) return;
    const auto value = x.value(segment, column + lane % columns);
    const int64_t end = x.offsets.end(segment);
    for (int64_t row = x.offsets.begin(segment) + lane / columns; row < end; row += together) {
      x.store(row, column + lane % columns, value);
    }
  });
}

}  // namespace

void warp_per_segment(const Args& args, Context& context) {
  const block::Strips<false> strips(args.width);
  const auto launch = [&](auto kernel, int64_t segments, const auto& e) {
    if (segments * strips.count() == 0) return;
    const int64_t blocks = tp::min(ceil_div(segments * strips.count(), int64_t(warps)), max_grid);
    kernel<<<unsigned(blocks), threads, 0, cudaStream_t(context.stream)>>>(e, strips);
    check_launch("warp_per_segment");
  };
  with_step(
      args, context, [&](const auto& e) { launch(reduce<std::decay_t<decltype(e)>>, e.segments, e); },
      [&](const auto& e) { launch(expand<std::decay_t<decltype(e)>>, e.segments + 2, e); });
}

}  // namespace tp::segment_reduce
#endif
