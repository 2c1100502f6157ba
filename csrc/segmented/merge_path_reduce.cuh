// merge_path, step reduce: every tile combines the segments that end in it and leaves two values: `head`, what it holds
// of a segment that began in an earlier tile and ends here, and `tail`, its rows after its last end. The last launch
// combines a head with the tails before it, back to the tile where the segment began.
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
  static constexpr int max_stretches = ReduceShape::threads;
  // Shared memory: marks of rows and stretches; from the bottom the rows, from the top of them on the results.
  TP_HD static int row_marks(int items) { return align16(items * int(sizeof(Mark))); }
  TP_HD static int marks(int items) { return row_marks(items) + align16(max_stretches * int(sizeof(Mark))); }
  static int shared_bytes(int items, int across) {
    return marks(items) + across * (items * int(sizeof(In)) + 2 * int(sizeof(Acc))) + 48;
  }
};

template <class E, bool single>
__global__ __launch_bounds__(ReduceShape<E>::threads) void reduce_tiles(const E e, const block::Bounds<false> bounds,
                                                                        const block::Path path,
                                                                        const block::Strips<single> strips,
                                                                        const OpenEnds<typename E::Acc> open_ends) {
  using Shape = ReduceShape<E>;
  using M = typename E::Monoid;
  using In = typename E::Input;
  using Acc = typename E::Acc;
  using Mark = typename Shape::Mark;
  extern __shared__ uint4 memory[];
  __shared__ block::Joint<Acc, Shape::warps> joint;
  __shared__ block::Arrivals arrivals;
  __shared__ bool open;  // the first segment that ends here began in an earlier tile
  char* const bytes = reinterpret_cast<char*>(memory);
  const int items = Shape::items(strips), marks = Shape::marks(items);
  start_tile<Shape::threads>(memory, marks, arrivals, 1);

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

  // The mark of a segment is the place of its result, counted from before the first. It stands at the segment's last
  // row, and beside the stretch in which no segment ends earlier. The result of an empty segment is there at once.
  auto *row_marks = reinterpret_cast<Mark*>(bytes),
       *first_marks = reinterpret_cast<Mark*>(bytes + Shape::row_marks(items));
  const int size = across * int(sizeof(Acc));
  block::each_segment<Shape::threads>(bounds, share, share.ends, open_ends.bad, [&](int k, int begin, int end) {
    if (k == 0) open = begin < 0;
    if (tp::max(begin, 0) < end) {
      const int stretch = (end - 1) / Shape::places;
      row_marks[end - 1] = Mark((k + 1) * size);
      if (begin <= stretch * Shape::places) first_marks[stretch] = Mark((k + 1) * size);
    } else {
      for (int c = 0; c < across; ++c) reinterpret_cast<Acc*>(results + k * size)[c] = M::identity();
    }
  });
  __syncthreads();
  arrivals.wait();

  const block::Place<single> place(strips, first_column);
  const int start = place.stretch * Shape::places;
  const int count = place.active ? tp::max(0, tp::min(Shape::places, share.rows - start)) : 0;
  const In* value = values + start * across + place.column;
  const Mark* mark = row_marks + start;
  char* const result = results - size + place.column * int(sizeof(Acc));
  Acc running = M::identity();
  struct Row {
    In value;
    Mark mark;
  };
  block::walk<Shape::places>(
      count, [&](int i) { return Row{value[i * across], mark[i]}; },
      [&](int i, const Row& row) {
        running = M::combine(running, x.operand(row.value, share.row + start + i));
        if (row.mark != 0) *reinterpret_cast<Acc*>(result + row.mark) = running;
        running = row.mark != 0 ? M::identity() : running;
      });

  // What the first result of a stretch lacks.
  const int first = place.exists ? first_marks[place.stretch] : 0;
  const int64_t open_end = tile * e.width + first_column + place.column;
  Acc tail;
  const auto before = block::join<M>(joint, strips, running, first != 0, tail);
  if (first != 0 && place.active) {
    auto* head = reinterpret_cast<Acc*>(result + first);
    *head = M::combine(before.value, *head);
    if (before.open && open) open_ends.heads[open_end] = *head;
  }
  if (place.active && place.stretch == Shape::stretches(strips) - 1) open_ends.tails[open_end] = tail;
  __syncthreads();
  if (!place.active) return;
  auto* to = e.out + (share.segment + place.stretch) * e.width + first_column + place.column;
  const int step = Shape::stretches(strips);
#pragma unroll 2
  for (int k = place.stretch; k < share.ends; k += step, to += step * e.width) {
    const Acc sum = *reinterpret_cast<Acc*>(result + (k + 1) * size);
    if (k > 0 || !open) *to = x.result(share.segment + k, sum);
  }
}

// A thread a tile; who has far to look back is helped by the whole block.
template <class E, bool single>
__global__ __launch_bounds__(512) void complete_segments(const E e, const block::Path path,
                                                         const block::Strips<single> strips,
                                                         const OpenEnds<typename E::Acc> ends) {
  using M = typename E::Monoid;
  using Acc = typename E::Acc;
  constexpr int warps = 512 / block::warp_size, near = 8;
  __shared__ block::Joint<Acc, warps> joint;
  __shared__ int far[512], far_count;
  block::wait_for_launch_before();
  const auto x = e.bind(simt::Pointers{});
  const int64_t group = strips.line(blockIdx.x), first_column = strips.first_column(blockIdx.x);
  if (*ends.bad) {
    const int64_t all = int64_t(gridDim.x / strips.count()) * warps;
    for (int64_t s = group * warps + threadIdx.x / block::warp_size; s < e.segments; s += all) {
      reduce_segment(x, s, first_column, strips.columns(first_column));
    }
    return;
  }
  if (threadIdx.x == 0) far_count = 0;
  __syncthreads();

  const block::Place<single> place(strips, first_column);
  const int64_t column = first_column + place.column;
  const int stretches = warps * strips.together();  // and tiles of the block
  // The tiles before `tile` that hold rows of the segment that ends there; none if none does.
  const auto look = [&](int64_t tile, int64_t& segment) -> int64_t {
    segment = ends.splits[tile].segment;
    const int64_t begin = x.offsets.begin(segment);
    if (begin >= ends.splits[tile].row || segment >= ends.splits[tile + 1].segment) return 0;
    return tile - path.item(segment, begin) / ReduceShape<E>::items(strips);
  };
  const auto finish = [&](int64_t tile, int64_t segment, Acc before) {
    x.store(segment, column, M::combine(before, ends.heads[tile * e.width + column]));
  };
  const auto tails = [&](int64_t from, int64_t to) {
    Acc sum = M::identity();
#pragma unroll 4
    for (int64_t t = from; t < to; ++t) sum = M::combine(sum, ends.tails[t * e.width + column]);
    return sum;
  };
  const int64_t tile = group * stretches + place.stretch;
  if (place.active && tile < path.tiles) {
    int64_t segment;
    const int64_t length = look(tile, segment);
    if (length > near) {
      if (place.column == 0) far[atomicAdd(&far_count, 1)] = place.stretch;
    } else if (length > 0) {
      finish(tile, segment, tails(tile - length, tile));
    }
  }
  __syncthreads();
  for (int i = 0; i < far_count; ++i) {
    const int64_t end = group * stretches + far[i];
    int64_t segment;
    const int64_t length = look(end, segment), run = ceil_div(length, int64_t(stretches));
    const int64_t from = end - length + tp::min(place.stretch * run, length);
    const Acc mine = place.active ? tails(from, tp::min(from + run, end)) : M::identity();
    Acc all;
    block::join<M>(joint, strips, mine, false, all);
    if (place.active && place.stretch == stretches - 1) finish(end, segment, all);
    __syncthreads();
  }
}

template <class E>
void reduce_by_path(const E& e, Context& context) {
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
    launch_tiles("merge_path", reduce_tiles<E, single>, path.tiles * strips.count(), Shape::threads,
                 Shape::shared_bytes(path.items, strips.across()), context, e, bounds, path, strips, ends);
    const int64_t groups = ceil_div(path.tiles, int64_t(512 / block::warp_size * strips.together()));
    launch_tiles("merge_path", complete_segments<E, single>, groups * strips.count(), 512, 0, context, e, path, strips,
                 ends);
  });
}

}  // namespace tp::segmented
