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
struct ReduceShape : TileShape<typename E::Input, typename E::Output> {
  using In = typename E::Input;
  using Out = typename E::Output;
  // Marks; from the bottom the rows, from the top of them on the results.
  static int shared_bytes(const block::Path& path, const Strips& strips) {
    return ReduceShape::mark_bytes(path) + strips.across * (path.items * int(sizeof(In)) + 2 * int(sizeof(Out))) + 64;
  }
};

template <class E>
__global__ __launch_bounds__(ReduceShape<E>::threads) void reduce_tiles(const E e, const block::Path path,
                                                                        const Strips strips,
                                                                        const OpenEnds<typename E::Acc> ends) {
  using Shape = ReduceShape<E>;
  using M = typename E::Monoid;
  using In = typename E::Input;
  using Out = typename E::Output;
  using Acc = typename E::Acc;
  extern __shared__ uint4 memory[];
  __shared__ block::Joint<Acc, Shape::warps> joint;
  auto* marks = reinterpret_cast<typename Shape::Mark*>(memory);
  clear_marks(marks, Shape::mark_bytes(path));

  const auto x = e.bind(simt::Pointers{});
  const int64_t tile = blockIdx.x / unsigned(strips.count);
  const int64_t first_column = int64_t(blockIdx.x % unsigned(strips.count)) * strips.across;
  const int across = strips.columns(first_column);
  const block::Share share(x.offsets, path, ends.splits, tile, ends.bad);

  // Rows to shared memory; meanwhile the last row of every segment gets the segment's number, counted from 1.
  auto* staged = reinterpret_cast<In*>(memory) + Shape::mark_bytes(path) / sizeof(In);
  const In* from = e.in + share.row * e.width + first_column;
  block::stage(staged, from, share.rows, across, e.width);
  const In* values = staged + block::phase(from);
  Out* to = e.out + share.segment * e.width + first_column;
  Out* results = reinterpret_cast<Out*>(align16(const_cast<In*>(values + share.rows * across)));
  const int skip = block::phase(to);
  block::each_segment(x.offsets, share, share.ends, ends.bad, [&](int k, int64_t begin, int64_t end) {
    const int64_t last = end - 1 - share.row;
    if (begin < end && last >= 0 && last < share.rows) {
      marks[last] = typename Shape::Mark(k + 1);
    } else {
      for (int c = 0; c < across; ++c) results[skip + k * across + c] = x.result(share.segment + k, M::identity());
    }
  });
  block::wait_staged();
  __syncthreads();

  // A stretch: all segments that end in it but the first are complete.
  const block::Place place(across);
  const int start = place.stretch * Shape::places;
  const int count = place.active ? tp::max(0, tp::min(Shape::places, share.rows - start)) : 0;
  const In* value = values + start * across + place.column;
  Acc running = M::identity(), head = running;
  int first = 0;
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    running = M::combine(running, x.operand(value[i * across], share.row + start + i));
    const int mark = marks[start + i];
    if (mark != 0) {
      if (first == 0) {
        first = mark;
        head = running;
      } else {
        results[skip + (mark - 1) * across + place.column] = x.result(share.segment + mark - 1, running);
      }
      running = M::identity();
    }
  }
  Acc tail;
  const auto before = block::join<M>(joint, running, first != 0, across, tail);
  const int64_t open_end = tile * e.width + first_column + place.column;
  if (first != 0) {
    head = M::combine(before.value, head);
    results[skip + (first - 1) * across + place.column] = x.result(share.segment + first - 1, head);
    if (before.open && share.open) ends.heads[open_end] = head;
  }
  if (place.active && place.stretch == Shape::warps * (block::warp_size / across) - 1) ends.tails[open_end] = tail;
  __syncthreads();
  block::unstage(to, results, skip, share.ends, across, e.width);
}

// A thread a tile; who has far to look back is helped by the whole block.
template <class E>
__global__ __launch_bounds__(512) void complete_segments(const E e, const block::Path path, const Strips strips,
                                                         const OpenEnds<typename E::Acc> ends) {
  using M = typename E::Monoid;
  using Acc = typename E::Acc;
  constexpr int warps = 512 / block::warp_size, near = 8;
  __shared__ block::Joint<Acc, warps> joint;
  __shared__ int far[512], far_count;
  const auto x = e.bind(simt::Pointers{});
  const int64_t strip = blockIdx.x % unsigned(strips.count), group = blockIdx.x / unsigned(strips.count);
  const int64_t first_column = strip * strips.across;
  const int across = strips.columns(first_column);
  if (*ends.bad) {
    const int64_t all = int64_t(gridDim.x / strips.count) * warps;
    for (int64_t s = group * warps + threadIdx.x / block::warp_size; s < e.segments; s += all) {
      reduce_segment(x, s, first_column, across);
    }
    return;
  }
  if (threadIdx.x == 0) far_count = 0;
  __syncthreads();

  const block::Place place(across);
  const int64_t column = first_column + place.column;
  const int tiles = warps * (block::warp_size / strips.across), stretches = warps * (block::warp_size / across);
  // The tiles before `tile` that hold rows of the segment that ends there; none if none does.
  const auto look = [&](int64_t tile, int64_t& segment) -> int64_t {
    segment = ends.splits[tile].segment;
    const int64_t begin = x.offsets.begin(segment);
    if (begin >= ends.splits[tile].row || segment >= ends.splits[tile + 1].segment) return 0;
    return tile - path.tile_of(segment, begin);
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
  const int64_t tile = group * tiles + place.stretch;
  if (place.active && place.stretch < tiles && tile < path.tiles) {
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
    const int64_t end = group * tiles + far[i];
    int64_t segment;
    const int64_t length = look(end, segment), run = ceil_div(length, int64_t(stretches));
    const int64_t from = end - length + tp::min(place.stretch * run, length);
    const Acc mine = place.active ? tails(from, tp::min(from + run, end)) : M::identity();
    Acc all;
    block::join<M>(joint, mine, false, across, all);
    if (place.active && place.stretch == stretches - 1) finish(end, segment, all);
    __syncthreads();
  }
}

template <class E>
void reduce_by_path(const E& e, Context& context) {
  using Shape = ReduceShape<E>;
  using Acc = typename E::Acc;
  if (e.segments == 0 || e.width == 0) return;
  const Strips strips(e.width);
  const block::Path path = Shape::path(e.n, e.segments, strips);
  auto* splits = context.workspace<block::Split>(path.tiles + 2);
  auto* bad = reinterpret_cast<uint64_t*>(splits + path.tiles + 1);
  const OpenEnds<Acc> ends{splits, reinterpret_cast<unsigned*>(bad), context.workspace<Acc>(path.tiles * e.width),
                           context.workspace<Acc>(path.tiles * e.width)};
  block::find_splits(e.offsets.bind(simt::Pointers{}), path, splits, bad, 1, context.stream);
  launch_tiles("merge_path", reduce_tiles<E>, path.tiles * strips.count, Shape::threads,
               Shape::shared_bytes(path, strips), context, e, path, strips, ends);
  const int64_t groups = ceil_div(path.tiles, int64_t(512 / block::warp_size * (block::warp_size / strips.across)));
  launch_tiles("merge_path", complete_segments<E>, groups * strips.count, 512, 0, context, e, path, strips, ends);
}

}  // namespace tp::segmented
