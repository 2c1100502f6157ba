// merge_path, step reduce. Every tile reduces the segments that end in it and stores two more values: its `head`, which
// is its part of the first segment that ends in it if that began in an earlier tile, and its `tail`, which combines its
// rows after its last segment end. The last launch combines each head with the tails before it, back to the tile in
// which the segment began. What a tile does with the results of its segments is a parameter: here they are stored, and
// a softmax (merge_path_softmax.cu) computes the rows.
#pragma once
#include "segmented/merge_path.cuh"
#include "segmented/warp_segment.cuh"

namespace tp::segmented {

template <class Acc>
struct OpenEnds {
  const block::Split* splits;
  unsigned* bad;
  Acc *heads, *tails;  // [tiles, width]
};

template <class E>
struct ReduceShape : TileShape<typename E::Input, typename E::Acc> {
  using In = typename E::Input;
  using Acc = typename E::Acc;
  using Mark = uint16_t;
  static constexpr int max_slices = ReduceShape::threads;
  // Shared memory: marks of rows and of slices; the rows; the results of the segments.
  TP_HD static int row_marks(int items) { return align16(items * int(sizeof(Mark))); }
  TP_HD static int marks(int items) { return row_marks(items) + align16(max_slices * int(sizeof(Mark))); }
  static int shared_bytes(int items, int across) {
    return marks(items) + across * (items * int(sizeof(In)) + 2 * int(sizeof(Acc))) + 48;
  }
};

// Where segments end in a tile. Counts of rows are those of the tile at most, whatever the offsets hold.
struct Ends {
  bool open;        // the first of them began in an earlier tile
  int first, last;  // the number of rows up to the first end and up to the last; not set if there is none
};

// Marks the rows at which segments end. A mark is the position of the segment's result in bytes, counted from `size`
// before the first result, so that no mark is 0. It is stored for the last row of the segment, and for a slice at the
// first segment that ends in it. An empty segment gets its result here.
template <class E, class Shape>
TP_DEVICE __forceinline__ void mark_ends(const block::Bounds<false>& bounds, const block::Share& share, int across,
                                         typename Shape::Mark* row_marks, typename Shape::Mark* first_marks,
                                         char* results, Ends& ends, unsigned* bad) {
  using Acc = typename E::Acc;
  using Mark = typename Shape::Mark;
  const int size = across * int(sizeof(Acc));
  block::each_segment<Shape::threads>(bounds, share, share.ends, bad, [&](int k, int begin, int end) {
    const int rows_before = tp::max(0, tp::min(end, share.rows));  // where offsets decrease, an end is outside the tile
    if (k == 0) ends.open = begin < 0, ends.first = rows_before;
    if (k == share.ends - 1) ends.last = rows_before;
    if (tp::max(begin, 0) < end) {
      const int slice = (end - 1) / Shape::slice_rows;
      row_marks[end - 1] = Mark((k + 1) * size);
      if (begin <= slice * Shape::slice_rows) first_marks[slice] = Mark((k + 1) * size);
    } else {
      for (int c = 0; c < across; ++c) reinterpret_cast<Acc*>(results + k * size)[c] = E::Monoid::identity();
    }
  });
}

// Combines the rows of a slice, and at every mark stores the running value as a result and restarts. Returns the value
// since the last mark.
template <class Shape, class Bound, class In>
TP_DEVICE __forceinline__ typename Bound::Acc reduce_slice(const Bound& x, const In* value, int across,
                                                           const typename Shape::Mark* mark, int count,
                                                           int64_t first_row, char* result) {
  using M = typename Bound::M;
  using Acc = typename Bound::Acc;
  struct Row {
    In value;
    typename Shape::Mark mark;
  };
  Acc running = M::identity();
  block::walk<Shape::slice_rows>(
      count, [&](int i) { return Row{value[i * across], mark[i]}; },
      [&](int i, const Row& row) {
        running = x.append(running, row.value, first_row + i);
        if (row.mark != 0) *reinterpret_cast<Acc*>(result + row.mark) = running;
        running = row.mark != 0 ? M::identity() : running;
      });
  return running;
}

// A reduced tile: the thread's slice of it, and where the results of its segments are in shared memory.
template <class E, class Bound, bool single>
struct ReducedTile {
  using Shape = ReduceShape<E>;
  const Bound& x;
  const block::Strips<single>& strips;
  const block::Share& share;
  const block::LanePosition<single>& position;
  const Ends& ends;
  int64_t first_column;
  typename E::Input* rows;            // all rows of the tile, one after another
  const typename Shape::Mark* marks;  // of the rows of the slice
  int start, count;                   // the rows of the slice
  int first;                          // the mark of the first segment that ends in it, or 0
  char* result;                       // where marks are counted from, in the thread's column
};

// Stores the results of a tile, except that of a segment which the last launch completes.
struct StoreResults {
  template <class E, class Bound, bool single>
  TP_DEVICE void operator()(const ReducedTile<E, Bound, single>& tile) const {
    using Acc = typename E::Acc;
    const auto& x = tile.x;
    const auto& position = tile.position;
    if (!position.active) return;
    const int size = tile.strips.across() * int(sizeof(Acc)), step = ReduceShape<E>::slices(tile.strips);
    auto* to = x.e.out + (tile.share.segment + position.slice) * x.e.width + tile.first_column + position.column;
#pragma unroll 2
    for (int k = position.slice; k < tile.share.ends; k += step, to += step * x.e.width) {
      const Acc sum = *reinterpret_cast<Acc*>(tile.result + (k + 1) * size);
      if (k > 0 || !tile.ends.open) *to = x.result(tile.share.segment + k, sum);
    }
  }
};

template <class E, class Finish, bool single>
__global__ __launch_bounds__(ReduceShape<E>::threads) void reduce_tiles(const E e, const Finish finish,
                                                                        const block::Bounds<false> bounds,
                                                                        const block::Path path,
                                                                        const block::Strips<single> strips,
                                                                        const OpenEnds<typename E::Acc> open_ends) {
  using Shape = ReduceShape<E>;
  using M = typename E::Monoid;
  using In = typename E::Input;
  using Acc = typename E::Acc;
  using Mark = typename Shape::Mark;
  extern __shared__ uint4 memory[];
  __shared__ block::SliceScanStorage<Acc, Shape::warps> scan_storage;
  __shared__ block::Arrivals arrivals;
  __shared__ Ends ends;
  char* const bytes = reinterpret_cast<char*>(memory);
  const int items = Shape::items(strips), marks = Shape::marks(items);
  start_tile<Shape::threads>(memory, marks, arrivals, 1);

  // Start to load the tile's rows.
  const auto x = e.bind(simt::Pointers{});
  const int64_t tile = strips.line(blockIdx.x), first_column = strips.first_column(blockIdx.x);
  const int across = strips.across();
  const block::Share share(bounds, items, typename Shape::EndItems{}, open_ends.splits, tile, open_ends.bad);
  const block::Lines<const In> lines(e.in, e.n * e.width, share.row * e.width + first_column, share.rows,
                                     strips.columns(first_column));
  auto* values = reinterpret_cast<In*>(bytes + marks);
  block::stage<Shape::threads>(arrivals, values, lines, strips);
  values += block::phase(lines.first);
  char* const results = bytes + marks + align16((block::phase(lines.first) + share.rows * across) * int(sizeof(In)));

  // Mark the ends of segments while the rows are on their way.
  auto *row_marks = reinterpret_cast<Mark*>(bytes),
       *first_marks = reinterpret_cast<Mark*>(bytes + Shape::row_marks(items));
  const int size = across * int(sizeof(Acc));
  mark_ends<E, Shape>(bounds, share, across, row_marks, first_marks, results, ends, open_ends.bad);
  __syncthreads();
  arrivals.wait();

  // Each lane reduces the rows of its slice.
  const block::LanePosition<single> position(strips, first_column);
  const int start = position.slice * Shape::slice_rows;
  const int count = position.active ? tp::max(0, tp::min(Shape::slice_rows, share.rows - start)) : 0;
  char* const result = results - size + position.column * int(sizeof(Acc));
  const Acc running = reduce_slice<Shape>(x, values + start * across + position.column, across, row_marks + start,
                                          count, share.row + start, result);

  // The first result of a slice lacks what earlier slices hold of its segment. If the segment began in an earlier tile,
  // the result is this tile's head.
  const int first = position.exists ? first_marks[position.slice] : 0;
  const int64_t open_end = tile * e.width + first_column + position.column;
  Acc tail;
  const auto before = block::scan_slices<M>(scan_storage, strips, running, first != 0, tail);
  if (first != 0 && position.active) {
    auto* head = reinterpret_cast<Acc*>(result + first);
    *head = M::combine(before.value, *head);
    if (before.open && ends.open) open_ends.heads[open_end] = *head;
  }
  if (position.active && position.slice == Shape::slices(strips) - 1) open_ends.tails[open_end] = tail;
  __syncthreads();
  finish(ReducedTile<E, std::decay_t<decltype(x)>, single>{x, strips, share, position, ends, first_column, values,
                                                           row_marks + start, start, count, first, result});
}

// Sums and stores of complete_segments, for one column.
template <class E, class Bound, bool single>
struct Completion {
  using M = typename E::Monoid;
  using Acc = typename E::Acc;
  const Bound& x;
  const block::Path& path;
  const block::Strips<single>& strips;
  const OpenEnds<Acc>& ends;
  const int64_t& column;

  // Returns the number of tiles before `tile` that hold rows of the first segment that ends in it; 0 if it has no head.
  TP_DEVICE __forceinline__ int64_t earlier_tiles(int64_t tile, int64_t& segment) const {
    segment = ends.splits[tile].segment;
    const int64_t begin = x.offsets.begin(segment);
    if (begin >= ends.splits[tile].row || segment >= ends.splits[tile + 1].segment) return 0;
    return tile - path.item(segment, begin) / ReduceShape<E>::items(strips);
  }
  // Combines the tails of the tiles from..to - 1.
  TP_DEVICE __forceinline__ Acc tails(int64_t from, int64_t to) const {
    Acc sum = M::identity();
#pragma unroll 4
    for (int64_t t = from; t < to; ++t) sum = M::combine(sum, ends.tails[t * x.e.width + column]);
    return sum;
  }
  TP_DEVICE __forceinline__ void store(int64_t tile, int64_t segment, Acc before) const {
    x.store(segment, column, M::combine(before, ends.heads[tile * x.e.width + column]));
  }
};

// Last launch. One thread per tile combines the head of its tile with the tails before it. If there are more than
// `near` tails, the whole block does it.
template <class E, bool single>
__global__ __launch_bounds__(512) void complete_segments(const E e, const block::Path path,
                                                         const block::Strips<single> strips,
                                                         const OpenEnds<typename E::Acc> ends) {
  using M = typename E::Monoid;
  using Acc = typename E::Acc;
  constexpr int warps = 512 / block::warp_size, near = 8;
  __shared__ block::SliceScanStorage<Acc, warps> scan_storage;
  __shared__ int far[512], far_count;
  block::wait_for_launch_before();
  const auto x = e.bind(simt::Pointers{});
  const int64_t group = strips.line(blockIdx.x), first_column = strips.first_column(blockIdx.x);
  // If the offsets were bad, reduce all segments again, with one warp per segment.
  if (*ends.bad) {
    const int64_t all = int64_t(gridDim.x / strips.count()) * warps;
    for (int64_t s = group * warps + threadIdx.x / block::warp_size; s < e.segments; s += all) {
      reduce_segment(x, s, first_column, strips.columns(first_column));
    }
    return;
  }
  if (threadIdx.x == 0) far_count = 0;
  __syncthreads();

  const block::LanePosition<single> position(strips, first_column);
  const int slices = warps * strips.together();  // which is also the number of tiles per block
  const int64_t column = first_column + position.column;
  const Completion<E, std::decay_t<decltype(x)>, single> completion{x, path, strips, ends, column};
  // Heads with few tiles before them: one thread each.
  const int64_t tile = group * slices + position.slice;
  if (position.active && tile < path.tiles) {
    int64_t segment;
    const int64_t length = completion.earlier_tiles(tile, segment);
    if (length > near) {
      if (position.column == 0) far[atomicAdd(&far_count, 1)] = position.slice;
    } else if (length > 0) {
      completion.store(tile, segment, completion.tails(tile - length, tile));
    }
  }
  __syncthreads();
  // Heads with many tiles before them: one after another, by the whole block.
  for (int i = 0; i < far_count; ++i) {
    const int64_t end = group * slices + far[i];
    int64_t segment;
    const int64_t length = completion.earlier_tiles(end, segment), run = ceil_div(length, int64_t(slices));
    const int64_t from = end - length + tp::min(position.slice * run, length);
    const Acc mine = position.active ? completion.tails(from, tp::min(from + run, end)) : M::identity();
    Acc all;
    block::scan_slices<M>(scan_storage, strips, mine, false, all);
    if (position.active && position.slice == slices - 1) completion.store(end, segment, all);
    __syncthreads();
  }
}

// Reduces, and then calls then(bounds, path, strips, ends), unless there is nothing to reduce.
template <class E, class Finish, class Then>
void reduce_by_path(const E& e, const Finish& finish, Context& context, Then then) {
  using Shape = ReduceShape<E>;
  using Acc = typename E::Acc;
  if (e.segments == 0 || e.width == 0) return;
  with_strips(e.width, [&](auto strips) {
    constexpr bool single = std::is_same<decltype(strips), block::Strips<true>>::value;
    const block::Path path = Shape::path(e.n, e.segments, strips);
    auto* splits = context.workspace<block::Split>(path.tiles + 2);
    auto* bad = reinterpret_cast<uint64_t*>(splits + path.tiles + 1);
    const OpenEnds<Acc> ends{splits, reinterpret_cast<unsigned*>(bad), context.workspace<Acc>(path.tiles * e.width),
                             context.workspace<Acc>(path.tiles * e.width)};
    const block::Bounds<false> bounds = bounds_of<false>(e.offsets);
    block::find_splits(bounds, path, splits, bad, 1, context.stream);
    launch_tiles("merge_path", reduce_tiles<E, Finish, single>, path.tiles * strips.count(), Shape::threads,
                 Shape::shared_bytes(path.items, strips.across()), context, e, finish, bounds, path, strips, ends);
    const int64_t groups = ceil_div(path.tiles, int64_t(512 / block::warp_size * strips.together()));
    launch_tiles("merge_path", complete_segments<E, single>, groups * strips.count(), 512, 0, context, e, path, strips,
                 ends);
    then(bounds, path, strips, ends);
  });
}

template <class E>
void reduce_by_path(const E& e, Context& context) {
  reduce_by_path(e, StoreResults{}, context, [](const auto&...) {});
}

}  // namespace tp::segmented
