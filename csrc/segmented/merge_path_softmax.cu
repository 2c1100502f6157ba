// merge_path, step softmax. A tile that has reduced its rows, which are still in shared memory, turns those of the
// segments that begin and end in it into results, so that they are read and written once. The last launch computes the
// rows of the segments that cross tiles.
#include "segmented/elements.h"
#include "segmented/merge_path_softmax.h"
#ifdef __CUDACC__
#include "segmented/merge_path_reduce.cuh"

namespace tp::segmented {
namespace {

// Returns the mark of the first segment that ends in the tile after the thread's slice, or 0. All threads must call it.
template <int warps, bool single>
TP_DEVICE int mark_after(const block::Strips<single>& strips, int first) {
  __shared__ int firsts[warps];
  const int lane = int(threadIdx.x) % block::warp_size, warp = int(threadIdx.x) / block::warp_size;
  const int next_slice = (lane / strips.across() + 1) * strips.across();
  const unsigned marked = __ballot_sync(~0u, first != 0);
  const unsigned later = next_slice < block::warp_size ? marked >> next_slice << next_slice : 0;
  int mark = __shfl_sync(~0u, first, later ? __ffs(int(later)) - 1 : lane);
  if (lane == (marked ? __ffs(int(marked)) - 1 : 0)) firsts[warp] = first;
  __syncthreads();
  if (later) return mark;
  mark = 0;
  for (int w = warp + 1; w < warps && mark == 0; ++w) mark = firsts[w];
  return mark;
}

// Computes the rows of a tile's segments in shared memory, and writes those of the segments that lie in it.
template <class S>
struct ComputeRows {
  S softmax;

  template <class E, class Bound, bool single>
  TP_DEVICE void operator()(const ReducedTile<E, Bound, single>& tile) const {
    using Shape = ReduceShape<E>;
    using T = typename E::Input;
    const int from = tile.ends.open ? tile.ends.first : 0, to = tile.ends.last, across = tile.strips.across();
    if (tile.share.ends == 0 || from >= to) return;
    finish_segments<E>(tile);
    compute_slice<E>(tile, mark_after<Shape::warps>(tile.strips, tile.first));
    block::staged_is_written();
    __syncthreads();
    const block::Lines<T> lines(softmax.out, softmax.n * softmax.width,
                                (tile.share.row + from) * softmax.width + tile.first_column, to - from,
                                tile.strips.columns(tile.first_column));
    const T* const rows = tile.rows + from * across;
    const int skip = block::phase(rows);
    block::unstage<Shape::threads>(lines, rows - skip, skip, tile.strips);
  }

  // Turns the sum of every segment into what its rows need.
  template <class E, class Tile>
  TP_DEVICE void finish_segments(const Tile& tile) const {
    using Value = typename E::Acc;
    const auto x = softmax.bind(simt::Pointers{});
    const int size = tile.strips.across() * int(sizeof(Value)), step = ReduceShape<E>::slices(tile.strips);
    if (!tile.position.active) return;
    for (int k = tile.position.slice; k < tile.share.ends; k += step) {
      auto* value = reinterpret_cast<Value*>(tile.result + (k + 1) * size);
      *value = x.finished(*value);
    }
  }

  // Goes from the last row of the thread's slice, which belongs to the segment with the mark `next`, to its first row.
  // What rows after the tile's last segment end get is not used.
  template <class E, class Tile>
  TP_DEVICE void compute_slice(const Tile& tile, int next) const {
    using T = typename E::Input;
    using Value = typename E::Acc;
    const int across = tile.strips.across(), last = tile.count - 1;
    T* const rows = tile.rows + tile.start * across + tile.position.column;
    const auto value_at = [&](int mark) { return *reinterpret_cast<const Value*>(tile.result + mark); };
    struct Row {
      T own;
      int mark;
    };
    Value value = next != 0 ? value_at(next) : Value{};
    block::walk<ReduceShape<E>::slice_rows>(
        tile.count, [&](int i) { return Row{rows[(last - i) * across], int(tile.marks[last - i])}; },
        [&](int i, const Row& row) {
          if (row.mark != 0) value = value_at(row.mark);
          rows[(last - i) * across] = softmax_of(row.own, value, softmax.logarithm);
        });
  }
};

constexpr int open_threads = 128;

// Last launch. One block per border between two tiles computes the rows of the segment that crosses it: those in the
// tile before the border and, if the segment ends in the tile after it, those there.
template <class S, bool single>
__global__ __launch_bounds__(open_threads) void compute_open_rows(const S e, const block::Bounds<false> bounds,
                                                                  const block::Strips<single> strips, int64_t tiles,
                                                                  const block::Split* splits, const unsigned* bad) {
  using T = typename S::Output;
  constexpr int batch = 4;
  block::wait_for_launch_before();
  if (*bad) return store_rows(e);
  const int64_t tile = strips.line(blockIdx.x) + 1, first_column = strips.first_column(blockIdx.x);
  if (tile >= tiles) return;
  const block::Split at = splits[tile];
  const int64_t begin = bounds.begin(at.segment);
  if (begin >= at.row) return;  // no segment crosses the border
  const int64_t from = tp::max(begin, splits[tile - 1].row);
  const int64_t to = at.segment < splits[tile + 1].segment ? bounds.begin(at.segment + 1) : at.row;

  const int columns = strips.columns(first_column), together = open_threads / columns;
  const int line = int(threadIdx.x) / columns;
  if (line >= together) return;
  const int64_t column = first_column + int(threadIdx.x) % columns;
  const auto x = e.bind(simt::Pointers{});
  const auto value = x.value(at.segment, column);
  for (int64_t row = from + line; row < to; row += batch * together) {
    T own[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      if (row + j * together < to) own[j] = e.x[(row + j * together) * e.width + column];
    }
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      if (row + j * together < to) e.out[(row + j * together) * e.width + column] = x.result(own[j], value);
    }
  }
}

}  // namespace

void softmax_by_path(const Args& args, Context& context) {
  with_softmax(args, context, [&](const auto& sums, const auto& rows) {
    using S = std::decay_t<decltype(rows)>;
    if (rows.segments == 0) {  // then every row is in no segment
      context.clear(rows.out, rows.n * rows.width * int64_t(sizeof(*rows.out)));
      return;
    }
    reduce_by_path(sums, ComputeRows<S>{rows}, context,
                   [&](const auto& bounds, const block::Path& path, const auto& strips, const auto& ends) {
                     constexpr bool single = std::is_same<std::decay_t<decltype(strips)>, block::Strips<true>>::value;
                     launch_tiles("merge_path", compute_open_rows<S, single>, path.tiles * strips.count(), open_threads,
                                  0, context, rows, bounds, strips, path.tiles, ends.splits, ends.bad);
                   });
  });
}

}  // namespace tp::segmented
#endif
