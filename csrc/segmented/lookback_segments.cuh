// decoupled_lookback, segmented: a tile is a share of the path over rows and segment ends (block/segments.cuh), of one
// strip of at most 32 columns.
//
// A tile publishes its rows since its last end at once. If its first segment began in an earlier tile, it combines what
// the tiles from there on have published: of its own group of tiles by a fixed tree, after the running value that the
// last tile of each group hands on. So a look-back never goes beyond the segment's first tile, nor beyond the group.
#pragma once
#include "block/lookback.cuh"
#include "segmented/merge_path.cuh"
#include "segmented/scan_elements.h"

namespace tp::segmented {

template <class E>
struct ScanShape : TileShape<typename E::Input, typename E::Input> {
  using In = typename E::Input;
  using Out = typename E::Output;
  static constexpr bool affine = E::Base::id == OpId::affine, in_place = sizeof(In) == sizeof(Out);
  // The factor 0 of a recurrence cuts as a head does, but in one column: there the values carry flags.
  using Monoid = typename std::conditional<affine, typename E::Monoid, typename E::Base>::type;
  using Acc = typename Monoid::Acc;
  using Mark = uint8_t;

  static int mark_bytes(const block::Path& path) { return ceil_div(path.items, 16) * 16; }
  static int rows_bytes(const block::Path& path, const Strips& strips, int size) {
    return ceil_div(path.items * strips.across * size + 16, 16) * 16;
  }
  // Tiles of a group, for `across` columns: as many as the block's stretches look up in at most 8 steps.
  TP_HD static int run(int across) { return across == 1 ? 1 : across < 4 ? 2 : 8; }
  TP_HD static int group(int across) { return ScanShape::warps * (block::warp_size / across) * run(across); }

  TP_DEVICE static Acc operand(In x, In factor, bool head) {
    if constexpr (affine) {
      using A = decltype(E::Base::Acc::a);
      head = head || A(factor) == A(0);
      return {{head ? A(0) : A(factor), A(x)}, head};
    } else {
      return Acc(x);
    }
  }
  TP_DEVICE static Out result(Acc value) {
    if constexpr (affine) {
      return Out(value.value.b);
    } else {
      return Out(value);
    }
  }
};

template <class Acc>
struct ScanTiles {
  const block::Split* splits;
  unsigned* bad;
  block::Chain<Acc> chain;  // of each column
  int marks, rows;          // bytes of shared memory
};

// What precedes a tile, from tile `start` on; in the lanes of the block's last stretch.
template <class Shape, class Joint>
TP_DEVICE typename Shape::Acc look_back(Joint& joint, const block::Chain<typename Shape::Acc>& chain, int64_t tile,
                                        int64_t start, const block::Place& place, int across, int full_across,
                                        int64_t column, int64_t width) {
  using M = typename Shape::Monoid;
  using Acc = typename M::Acc;
  const int run = Shape::run(full_across), members = Shape::group(full_across);
  const int64_t group = tile / members, first = group * members;
  const int64_t from = tp::max(start, first + place.stretch * run),
                to = tp::min(first + (place.stretch + 1) * run, tile);
  Acc sum = M::identity();
  if (place.active) {
    if (place.stretch == 0 && start < first) sum = chain.groups[(group - 1) * width + column].wait();
    for (int64_t t = from; t < to; ++t) sum = M::combine(sum, chain.tiles[t * width + column].wait());
  }
  Acc whole;
  block::join<M>(joint, sum, false, across, whole);
  return whole;
}

template <class E>
__global__ __launch_bounds__(ScanShape<E>::threads) void scan_tiles(const E e, const block::Path path,
                                                                    const Strips strips,
                                                                    const ScanTiles<typename ScanShape<E>::Acc> tiles) {
  using Shape = ScanShape<E>;
  using M = typename Shape::Monoid;
  using In = typename E::Input;
  using Out = typename E::Output;
  using Acc = typename Shape::Acc;
  extern __shared__ uint4 memory[];
  __shared__ block::Joint<Acc, Shape::warps> joint, other_joint;
  __shared__ Acc before_tile[block::warp_size];
  auto* marks = reinterpret_cast<typename Shape::Mark*>(memory);
  clear_marks(marks, tiles.marks);
  const auto x = e.bind(simt::Pointers{});
  const int64_t ticket = block::take_ticket(tiles.chain), tile = ticket / strips.count;
  const int64_t first_column = (ticket - tile * strips.count) * strips.across;
  const int across = strips.columns(first_column);
  const block::Share share(x.offsets, path, tiles.splits, tile, tiles.bad);

  // Rows to shared memory, in the order of memory; place i of the tile is row `at(i)` there.
  const int64_t memory_row = e.reverse ? e.n - share.row - share.rows : share.row;
  const int64_t memory_first = memory_row * e.width + first_column;
  char* free_memory = reinterpret_cast<char*>(memory) + tiles.marks;
  auto* staged = reinterpret_cast<In*>(free_memory);
  block::stage(staged, e.in + memory_first, share.rows, across, e.width);
  const In *values = staged + block::phase(e.in + memory_first), *factors = values;
  int skip = block::phase(e.in + memory_first);
  auto* results = reinterpret_cast<Out*>(staged);
  if constexpr (Shape::affine) {
    auto* staged_factors = reinterpret_cast<In*>(free_memory + tiles.rows);
    block::stage(staged_factors, e.a + memory_first, share.rows, across, e.width);
    factors = staged_factors + block::phase(e.a + memory_first);
  } else if constexpr (!Shape::in_place) {
    results = reinterpret_cast<Out*>(free_memory + tiles.rows);
    skip = block::phase(e.out + memory_first);
  }
  // A mark stands at the last place of a segment.
  block::each_segment(x.offsets, share, share.ends, tiles.bad, [&](int k, int64_t begin, int64_t end) {
    const int64_t last = end - 1 - share.row;
    if (begin < end && last >= 0 && last < share.rows) marks[last] = 1;
  });
  block::wait_staged();
  __syncthreads();

  const block::Place place(across);
  const int start = place.stretch * Shape::places;
  const int count = place.active ? tp::max(0, tp::min(Shape::places, share.rows - start)) : 0;
  const int step = e.reverse ? -across : across;
  const int first = (e.reverse ? share.rows - 1 - start : start) * across + place.column;
  // Whether the first place of the stretch is the head of a segment; only a recurrence asks.
  const bool starts = Shape::affine && count > 0 && (start > 0 ? marks[start - 1] != 0 : !share.open);
  Acc running = M::identity();
  bool closed = false, head = starts;
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    running = M::combine(running, Shape::operand(values[first + i * step], factors[first + i * step], head));
    head = marks[start + i] != 0;
    if (head) {
      closed = true;
      running = M::identity();
    }
  }
  Acc tail;
  auto before = block::join<M>(joint, running, closed, across, tail);

  const int64_t column = first_column + place.column;
  const bool last = place.active && place.stretch == Shape::warps * (block::warp_size / across) - 1;
  if (last) tiles.chain.tiles[tile * e.width + column].publish(tail);
  const int members = Shape::group(strips.across);
  if (share.open) {
    const Acc previous = look_back<Shape>(other_joint, tiles.chain, tile, path.tile_of(share.segment, share.begin),
                                          place, across, strips.across, column, e.width);
    if (last) before_tile[place.column] = previous;
    __syncthreads();
    if (before.open) before.value = M::combine(before_tile[place.column], before.value);
  }
  if (last && tile % members == members - 1) {
    bool tile_open = share.open;
    for (int w = 0; w < Shape::warps; ++w) tile_open = tile_open && !joint.closed[w];
    if (tile_open) tail = M::combine(before_tile[place.column], tail);
    tiles.chain.groups[tile / members * e.width + column].publish(tail);
  }

  running = before.value;
  head = starts;
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const Acc next = M::combine(running, Shape::operand(values[first + i * step], factors[first + i * step], head));
    results[skip + first + i * step] = Shape::result(e.exclusive ? running : next);
    head = marks[start + i] != 0;
    running = head ? M::identity() : next;
  }
  __syncthreads();
  block::unstage(e.out + memory_first, results, skip, share.rows, across, e.width);
}

// If the offsets were bad: a warp scans a segment, and stores at the rows that find it.
template <class E>
__global__ void scan_segments(const E e, const unsigned* bad) {
  if (!*bad) return;
  using Shape = ScanShape<E>;
  using M = typename Shape::Monoid;
  using Acc = typename Shape::Acc;
  const auto x = e.bind(simt::Pointers{});
  const int lane = int(threadIdx.x) % block::warp_size;
  const int64_t thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, all = int64_t(gridDim.x) * blockDim.x;
  const int64_t warps = all / block::warp_size;
  for (int64_t i = thread / block::warp_size; i < e.segments * e.width; i += warps) {
    const int64_t segment = i / e.width, column = i % e.width, end = x.offsets.end(segment);
    Acc before = M::identity();
    for (int64_t first = x.offsets.begin(segment); first < end; first += block::warp_size) {
      const int64_t k = first + lane, at = x.at(column, tp::min(k, end - 1));
      const Acc mine = k < end
                           ? Shape::operand(e.in[at], Shape::affine ? e.a[at] : e.in[at], k == x.offsets.begin(segment))
                           : M::identity();
      const Acc with_mine = M::combine(before, block::inclusive_scan<M>(mine));
      Acc without = block::shuffle_up(with_mine, 1);
      if (lane == 0) without = before;
      if (k < end && x.offsets.find(k) == segment) e.out[at] = Shape::result(e.exclusive ? without : with_mine);
      before = block::broadcast(with_mine, block::warp_size - 1);
    }
  }
  for (int64_t k = thread; k < e.n; k += all) {
    if (x.offsets.exists(x.offsets.find(k))) continue;
    for (int64_t c = 0; c < e.width; ++c) e.out[x.at(c, k)] = Shape::result(M::identity());
  }
}

template <class E>
void scan_by_path(const E& e, Context& context) {
  using Shape = ScanShape<E>;
  using Acc = typename Shape::Acc;
  using Cell = block::Cell<Acc>;
  if (e.n == 0 || e.width == 0) return;
  const Strips strips(e.width);
  const block::Path path = Shape::path(e.n, e.segments, strips);
  const int64_t groups = ceil_div(path.tiles, int64_t(Shape::group(strips.across)));
  auto* splits = context.workspace<block::Split>(path.tiles + 1);
  // To be cleared: the flag, the tickets, the cells.
  const int64_t words = 2 + (path.tiles + groups) * e.width * Cell::words;
  auto* cleared = context.workspace<uint64_t>(words);
  auto* cells = reinterpret_cast<Cell*>(cleared + 2);
  auto* bad = reinterpret_cast<unsigned*>(cleared);
  const block::Chain<Acc> chain{cells, cells + path.tiles * e.width,
                                reinterpret_cast<unsigned long long*>(cleared + 1)};
  block::find_splits(e.offsets.bind(simt::Pointers{}), path, splits, cleared, words, context.stream);

  const ScanTiles<Acc> tiles{splits, bad, chain, Shape::mark_bytes(path),
                             Shape::rows_bytes(path, strips, sizeof(typename E::Input))};
  const int more = Shape::affine     ? tiles.rows
                   : Shape::in_place ? 0
                                     : Shape::rows_bytes(path, strips, sizeof(typename E::Output));
  launch_tiles("decoupled_lookback", scan_tiles<E>, path.tiles * strips.count, Shape::threads,
               tiles.marks + tiles.rows + more, context, e, path, strips, tiles);
  launch_tiles("decoupled_lookback", scan_segments<E>, tp::min(ceil_div(e.n, int64_t(256)), int64_t(1024)), 256, 0,
               context, e, bad);
}

}  // namespace tp::segmented
