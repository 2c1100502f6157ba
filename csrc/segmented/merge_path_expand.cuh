// merge_path, step expand. Each thread fills a slice of the tile's rows in shared memory with the values of their
// segments; then the block writes the tile coalesced.
#pragma once
#include "segmented/merge_path.cuh"

namespace tp::segmented {

template <class E>
struct ExpandShape : TileShape<typename E::Value, typename E::Value> {
  using T = typename E::Value;
  using Mark = uint16_t;
  static constexpr int max_slices = ExpandShape::threads;
  // Shared memory: the marks of rows and of slices; the rows; the values of the segments, including the one that
  // continues after the tile.
  TP_HD static int row_marks(int items) { return align16(items * int(sizeof(Mark))); }
  TP_HD static int marks(int items) { return row_marks(items) + align16(max_slices * int(sizeof(Mark))); }
  static int shared_bytes(int items, int across) { return marks(items) + across * (items + 3) * int(sizeof(T)) + 64; }
};

// Marks the rows at which segments begin. A mark is the position of the segment's value, counted from `across` before
// the first value, so that no mark is 0. It is stored for the first row of the segment, and for a slice at the last
// segment that begins in it.
template <class Shape>
TP_DEVICE __forceinline__ void mark_heads(const block::Bounds<false>& bounds, const block::Share& share, int segments,
                                          int across, typename Shape::Mark* row_marks, typename Shape::Mark* last_marks,
                                          unsigned* bad) {
  using Mark = typename Shape::Mark;
  block::each_segment<Shape::threads>(bounds, share, segments, bad, [&](int k, int begin, int end) {
    if (begin >= end || begin < 0) return;
    const int slice = begin / Shape::slice_rows;
    row_marks[begin] = Mark((k + 1) * across);
    if (end >= tp::min((slice + 1) * Shape::slice_rows, share.rows)) last_marks[slice] = Mark((k + 1) * across);
  });
}

// Fills `count` rows of a slice with the values of their segments, where values[marks(i)] is that of the segment that
// begins at row i, unless marks(i) is 0, and values[first] that of the first row.
template <class Shape, class Marks>
TP_DEVICE __forceinline__ void fill_slice(int count, const typename Shape::T* values, int first, const Marks& marks,
                                          typename Shape::T* row, int across) {
  using T = typename Shape::T;
  struct Item {
    T value;
    bool head;
  };
  T running = count > 0 ? values[first] : T{};
  block::walk<Shape::slice_rows>(
      count,
      [&](int i) {
        const auto mark = marks(i);
        return mark != 0 ? Item{values[mark], true} : Item{T{}, false};
      },
      [&](int i, const Item& item) {
        if (item.head) running = item.value;
        row[i * across] = running;
      });
}

template <class E, bool single>
__global__ __launch_bounds__(ExpandShape<E>::threads) void expand_tiles(const E e, const block::Bounds<false> bounds,
                                                                        const block::Path path,
                                                                        const block::Strips<single> strips,
                                                                        const block::Split* splits, unsigned* bad) {
  using Shape = ExpandShape<E>;
  using T = typename E::Value;
  using Mark = typename Shape::Mark;
  using Newest = Max<int>;
  extern __shared__ uint4 memory[];
  __shared__ block::SliceScanStorage<int, Shape::warps> scan_storage;
  __shared__ block::Arrivals arrivals;
  char* const bytes = reinterpret_cast<char*>(memory);
  const int items = Shape::items(strips), marks = Shape::marks(items);
  start_tile<Shape::threads>(memory, marks, arrivals, 1);

  // Start to load the values of the tile's segments.
  const int64_t tile = strips.line(blockIdx.x), first_column = strips.first_column(blockIdx.x);
  const int across = strips.across(), columns = strips.columns(first_column);
  const block::Share share(bounds, items, typename Shape::EndItems{}, splits, tile, bad);
  const int segments = share.ends + (share.segment + share.ends < e.segments);
  const block::Lines<const T> from(e.in, e.segments * e.width, share.segment * e.width + first_column, segments,
                                   columns);
  const block::Lines<T> to(e.out, e.n * e.width, share.row * e.width + first_column, share.rows, columns);
  const int skip = block::phase(to.first);
  auto* rows = reinterpret_cast<T*>(bytes + marks);
  auto* values = rows + align16((skip + share.rows * across) * int(sizeof(T))) / int(sizeof(T));
  block::stage<Shape::threads>(arrivals, values, from, strips);
  values += block::phase(from.first);

  // While the values are on their way, mark the heads of segments.
  auto *row_marks = reinterpret_cast<Mark*>(bytes),
       *last_marks = reinterpret_cast<Mark*>(bytes + Shape::row_marks(items));
  mark_heads<Shape>(bounds, share, segments, across, row_marks, last_marks, bad);
  __syncthreads();
  arrivals.wait();

  // The last mark before a slice tells which segment its first rows belong to.
  const block::LanePosition<single> position(strips, first_column);
  const int start = position.slice * Shape::slice_rows;
  const int count = position.active ? tp::max(0, tp::min(Shape::slice_rows, share.rows - start)) : 0;
  const int last = position.exists ? last_marks[position.slice] : 0;
  int whole;
  const auto before = block::scan_slices<Newest>(scan_storage, strips, last, false, whole);
  const T* const value = values - across + position.column;
  T* const row = rows + skip + start * across + position.column;
  fill_slice<Shape>(
      count, value, tp::max(before.value, across), [&](int i) { return row_marks[start + i]; }, row, across);
  block::staged_is_written();
  __syncthreads();
  block::unstage<Shape::threads>(to, rows, skip, strips);
}

template <class E>
__global__ void expand_rows(const E e, const unsigned* bad) {
  block::wait_for_launch_before();
  if (*bad) store_rows(e);
}

template <class E>
void expand_by_path(const E& e, Context& context) {
  using Shape = ExpandShape<E>;
  if (e.n == 0 || e.width == 0) return;
  with_strips(e.width, [&](auto strips) {
    constexpr bool single = std::is_same<decltype(strips), block::Strips<true>>::value;
    const block::Path path = Shape::path(e.n, e.segments, strips);
    auto* splits = context.workspace<block::Split>(path.tiles + 2);
    auto* bad = reinterpret_cast<unsigned*>(splits + path.tiles + 1);
    const block::Bounds<false> bounds = bounds_of<false>(e.offsets);
    block::find_splits(bounds, path, splits, reinterpret_cast<uint64_t*>(bad), 1, context.stream);
    launch_tiles("merge_path", expand_tiles<E, single>, path.tiles * strips.count(), Shape::threads,
                 Shape::shared_bytes(path.items, strips.across()), context, e, bounds, path, strips, splits, bad);
    launch_tiles("merge_path", expand_rows<E>, tp::min(ceil_div(e.n, int64_t(256)), int64_t(1024)), 256, 0, context, e,
                 bad);
  });
}

}  // namespace tp::segmented
