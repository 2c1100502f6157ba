// merge_path, step expand: every row of a tile learns its segment, from a mark at the first row of each; then the
// tile's rows are written side by side.
#pragma once
#include "segmented/merge_path.cuh"

namespace tp::segmented {

template <class E>
struct ExpandShape : TileShape<typename E::Value, typename E::Value> {
  using T = typename E::Value;
  // Marks; then the values of the segments, the one that goes on beyond the tile included.
  static int shared_bytes(const block::Path& path, const Strips& strips) {
    return ExpandShape::mark_bytes(path) + strips.across * (path.most_ends(0) + 1) * int(sizeof(T)) + 32;
  }
};

// A row that no mark precedes belongs to segment 0 of the tile; each other mark stands for itself minus 1.
template <int places, int warps, class Mark>
TP_DEVICE void spread_marks(Mark* marks, int rows) {
  __shared__ int newest[warps];
  const int lane = int(threadIdx.x) % block::warp_size, warp = int(threadIdx.x) / block::warp_size;
  const int start = int(threadIdx.x) * places, end = tp::min(start + places, rows);
  int mark = 1;
  for (int i = start; i < end; ++i) mark = tp::max(mark, int(marks[i]));
  const int with_mine = block::inclusive_scan<Max<int>>(mark);
  mark = block::shuffle_up(with_mine, 1);
  if (lane == 0) mark = 1;
  if (lane == block::warp_size - 1) newest[warp] = with_mine;
  __syncthreads();
  for (int w = 0; w < warp; ++w) mark = tp::max(mark, newest[w]);
#pragma unroll 4
  for (int i = start; i < end; ++i) {
    mark = tp::max(mark, int(marks[i]));
    marks[i] = Mark(mark - 1);
  }
}

template <class E>
__global__ __launch_bounds__(ExpandShape<E>::threads) void expand_tiles(const E e, const block::Path path,
                                                                        const Strips strips, const block::Split* splits,
                                                                        unsigned* bad) {
  using Shape = ExpandShape<E>;
  using T = typename E::Value;
  constexpr int vector = int(16 / sizeof(T));
  extern __shared__ uint4 memory[];
  auto* marks = reinterpret_cast<typename Shape::Mark*>(memory);
  clear_marks(marks, Shape::mark_bytes(path));

  const auto x = e.bind(simt::Pointers{});
  const int64_t tile = blockIdx.x / unsigned(strips.count);
  const int64_t first_column = int64_t(blockIdx.x % unsigned(strips.count)) * strips.across;
  const int across = strips.columns(first_column);
  const block::Share share(x.offsets, path, splits, tile, bad);
  const int segments = share.ends + (share.segment + share.ends < e.segments);

  auto* staged = reinterpret_cast<T*>(memory) + Shape::mark_bytes(path) / sizeof(T);
  const T* from = e.in + share.segment * e.width + first_column;
  block::stage(staged, from, segments, across, e.width);
  const T* values = staged + block::phase(from);
  block::each_segment(x.offsets, share, segments, bad, [&](int k, int64_t begin, int64_t end) {
    const int64_t first = begin - share.row;
    if (begin < end && first >= 0 && first < share.rows) marks[first] = typename Shape::Mark(k + 1);
  });
  block::wait_staged();
  __syncthreads();
  spread_marks<Shape::places, Shape::warps>(marks, share.rows);
  __syncthreads();

  T* to = e.out + share.row * e.width + first_column;
  if (across == e.width) {
    const int skip = block::phase(to), last = skip + share.rows * across;
    const unsigned reciprocal = across > 1 ? ~0u / unsigned(across) + 1 : 0;
    const auto value = [&](int i) {
      const int row = across > 1 ? int(__umulhi(unsigned(i), reciprocal)) : i;
      return values[int(marks[row]) * across + i - row * across];
    };
    for (int i = int(threadIdx.x) * vector; i < last; i += Shape::threads * vector) {
      if (i >= skip && i + vector <= last) {
        alignas(16) T v[vector];
#pragma unroll
        for (int k = 0; k < vector; ++k) v[k] = value(i - skip + k);
        *reinterpret_cast<uint4*>(to - skip + i) = *reinterpret_cast<const uint4*>(v);
      } else {
        for (int k = tp::max(i, skip); k < tp::min(i + vector, last); ++k) to[k - skip] = value(k - skip);
      }
    }
  } else {
    const block::Place place(across);
    const int together = Shape::warps * (block::warp_size / across);
    for (int row = place.active ? place.stretch : share.rows; row < share.rows; row += together) {
      to[row * e.width + place.column] = values[int(marks[row]) * across + place.column];
    }
  }
}

// If the offsets were bad: a thread a row.
template <class E>
__global__ void expand_rows(const E e, const unsigned* bad) {
  if (!*bad) return;
  const auto x = e.bind(simt::Pointers{});
  const int64_t all = int64_t(gridDim.x) * blockDim.x;
  for (int64_t row = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; row < e.n; row += all) {
    const int64_t segment = x.offsets.find(row);
    for (int64_t c = 0; c < e.width; ++c) x.store(row, c, x.value(segment, c));
  }
}

template <class E>
void expand_by_path(const E& e, Context& context) {
  using Shape = ExpandShape<E>;
  if (e.n == 0 || e.width == 0) return;
  const Strips strips(e.width);
  const block::Path path = Shape::path(e.n, e.segments, strips);
  auto* splits = context.workspace<block::Split>(path.tiles + 2);
  auto* bad = reinterpret_cast<unsigned*>(splits + path.tiles + 1);
  block::find_splits(e.offsets.bind(simt::Pointers{}), path, splits, reinterpret_cast<uint64_t*>(bad), 1,
                     context.stream);
  launch_tiles("merge_path", expand_tiles<E>, path.tiles * strips.count, Shape::threads,
               Shape::shared_bytes(path, strips), context, e, path, strips, splits, bad);
  launch_tiles("merge_path", expand_rows<E>, tp::min(ceil_div(e.n, int64_t(256)), int64_t(1024)), 256, 0, context, e,
               bad);
}

}  // namespace tp::segmented
