// decoupled_lookback for segments. A tile is a share of the path over rows and segment ends (block/segments.cuh), for
// one strip of at most 32 columns.
//
// A tile publishes the aggregate of its rows since its last segment end at once. If its first segment began in an
// earlier tile, it looks back as far as that tile and combines three values, always in the same order: those of the
// tiles of its group, those of the groups of its supergroup, and the prefix at the end of the previous supergroup. No
// look-back goes beyond the first tile of the segment or combines more than 65 values, and only one tile in 1,024
// publishes a value that depends on a chain of waits.
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
  // A factor of 0 restarts a recurrence as a head does, but only in its own column, so values of recurrences carry head
  // flags.
  using Monoid = typename std::conditional<affine, typename E::Monoid, typename E::Base>::type;
  using Acc = typename Monoid::Acc;
  using Mark = uint8_t;
  static constexpr int max_slices = ScanShape::threads;

  // Shared memory: the marks of rows and of slices; the rows; then the factors of a recurrence, or the results if they
  // are wider than the rows.
  TP_HD static int row_marks(int items) { return align16(items); }
  TP_HD static int marks(int items) { return row_marks(items) + align16(max_slices); }
  TP_HD static int rows(int items, int across, int size) { return align16(items * across * size + 16); }
  static int shared_bytes(int items, int across) {
    return marks(items) + rows(items, across, sizeof(In)) +
           (affine     ? rows(items, across, sizeof(In))
            : in_place ? 0
                       : rows(items, across, sizeof(Out)));
  }
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

// The tile states. A tile publishes its aggregate since its last segment end, and so does a group of tiles;
// a supergroup publishes the inclusive prefix at its end. Each array stores one column after another.
// Groups and supergroups have equally many members, so one function combines either.
constexpr int tiles_per_group = 32, groups_per_supergroup = tiles_per_group;

template <class Acc>
struct ScanTileStates {
  block::TileState<Acc>*tiles, *groups, *supergroups;
  int64_t tile_count, group_count, supergroup_count;
  unsigned long long* tickets;
};

template <class Acc>
struct ScanTiles {
  const block::Split* splits;
  unsigned* bad;
  ScanTileStates<Acc> states;
};

// Look-back: stores the exclusive prefix of a tile, whose first segment began in tile `start`, to before[column]. Each
// warp handles some of the columns. A tile without a segment end (`through`) also publishes for its group and its
// supergroup, if it is the last tile of these.
template <class M, int warps, bool single>
TP_DEVICE void look_back(const ScanTileStates<typename M::Acc>& states, int64_t tile, int64_t start, bool through,
                         const block::Strips<single>& strips, int64_t first_column, const typename M::Acc* tails,
                         typename M::Acc* before) {
  using Acc = typename M::Acc;
  constexpr int most = single ? 1 : ceil_div(tiles_per_group * ceil_div(block::warp_size, warps), block::warp_size);
  const int lane = int(threadIdx.x) % block::warp_size, columns = ceil_div(strips.across(), warps);
  const int mine = int(threadIdx.x) / block::warp_size * columns + lane % columns, slices = block::warp_size / columns;
  const int each = ceil_div(tiles_per_group, slices), lanes = slices * columns;
  const bool active = lane < lanes && mine < strips.columns(first_column);
  const int64_t column = first_column + mine;
  const int64_t group = tile / tiles_per_group, supergroup = group / groups_per_supergroup;
  // Combines states `from` to `end` - 1 of one group or supergroup. Several lanes share a column.
  const auto combined = [&](const block::TileState<Acc>* array, int64_t from, int64_t end) {
    const int64_t first = end / tiles_per_group * tiles_per_group + lane / columns * each;
    const int64_t low = tp::max(from, first), high = tp::min(first + each, end);
    Acc sum = M::identity();
    if (active && low < high) sum = block::wait_all<M, most>(array + low, int(high - low));
    for (int distance = columns; distance < lanes; distance *= 2) {
      const Acc right = block::shuffle_down(sum, distance);
      if (lane + distance < lanes) sum = M::combine(sum, right);
    }
    return sum;
  };
  if (mine - lane % columns >= strips.across()) return;  // this warp has no columns
  const bool publishes = active && lane < columns;
  // Combine the earlier tiles of the group.
  Acc sum = combined(states.tiles + column * states.tile_count, start, tile);
  if (publishes && through && tile % tiles_per_group == tiles_per_group - 1) {
    states.groups[column * states.group_count + group].publish(M::combine(sum, tails[mine]));
  }
  // Combine the earlier groups of the supergroup, and the prefix at the end of the previous supergroup.
  if (start < group * tiles_per_group) {
    Acc earlier = combined(states.groups + column * states.group_count, start / tiles_per_group, group);
    if (publishes && start < supergroup * groups_per_supergroup * tiles_per_group) {
      earlier = M::combine(states.supergroups[column * states.supergroup_count + supergroup - 1].wait(), earlier);
    }
    sum = M::combine(earlier, sum);
  }
  if (!publishes) return;
  if (through && group % groups_per_supergroup == groups_per_supergroup - 1 &&
      tile % tiles_per_group == tiles_per_group - 1) {
    states.supergroups[column * states.supergroup_count + supergroup].publish(M::combine(sum, tails[mine]));
  }
  before[mine] = sum;
}

// One element of a tile in shared memory: its value, the factor of a recurrence, and whether it is the last row of its
// segment.
template <class In>
struct ScanRow {
  In value, factor;
  bool last;
};

// The rows of a slice in shared memory, in the order of the scan.
template <class Shape>
struct SliceRows {
  using In = typename Shape::In;
  const In *values, *factors;  // of the first row
  const typename Shape::Mark* marks;
  int step;
  TP_DEVICE __forceinline__ ScanRow<In> operator()(int i) const {
    return {values[i * step], factors[i * step], marks[i] != 0};
  }
};

// The rows of a tile that a lane scans: `count` of them, row `start` of the tile first. In shared memory, element
// `first` is the first, and the next one is `step` elements further on.
template <class Shape>
struct TileSlice {
  int start, count, step, first;

  template <bool single>
  TP_DEVICE __forceinline__ TileSlice(const block::LanePosition<single>& position, int rows, int across, bool reverse)
      : start(position.slice * Shape::slice_rows),
        count(position.active ? tp::max(0, tp::min(Shape::slice_rows, rows - start)) : 0),
        step(reverse ? -across : across),
        first((reverse ? rows - 1 - start : start) * across + position.column) {}
};

// Marks the last row of every segment that ends in the tile, and the slice that contains this row.
template <class Shape>
TP_DEVICE __forceinline__ void mark_last_rows(const block::Bounds<true>& bounds, const block::Share& share,
                                              typename Shape::Mark* marks, typename Shape::Mark* closed,
                                              unsigned* bad) {
  block::each_segment<Shape::threads>(bounds, share, share.ends, bad, [&](int, int begin, int end) {
    if (tp::max(begin, 0) >= end) return;
    marks[end - 1] = 1;
    closed[(end - 1) / Shape::slice_rows] = 1;
  });
}

// Publishes a tile's aggregate in one column. If a segment ends in the tile (not `through`), the same value is the
// aggregate of its group and the prefix of its supergroup, if it is the last tile of these.
template <class Acc>
TP_DEVICE __forceinline__ void publish_tile(const ScanTileStates<Acc>& states, int64_t tile, int64_t column,
                                            bool through, const Acc& tail) {
  const int64_t group = tile / tiles_per_group;
  states.tiles[column * states.tile_count + tile].publish(tail);
  if (!through && tile % tiles_per_group == tiles_per_group - 1) {
    states.groups[column * states.group_count + group].publish(tail);
    if (group % groups_per_supergroup == groups_per_supergroup - 1) {
      states.supergroups[column * states.supergroup_count + group / groups_per_supergroup].publish(tail);
    }
  }
}

// The rows of a tile in shared memory: what is loaded, and where the results go, `skip` elements further on.
template <class E>
struct StagedRows {
  const typename E::Input *values, *factors;
  typename E::Output* results;
  int skip;
};

// Starts to load the rows of a tile. lines(array) are those of an array of E, the first of which is at `first`.
template <class E, bool single, class Lines>
TP_DEVICE __forceinline__ StagedRows<E> stage_rows(const E& e, int64_t first, const Lines& lines,
                                                   const block::Strips<single>& strips, char* bytes,
                                                   block::Arrivals& arrivals) {
  using Shape = ScanShape<E>;
  using In = typename E::Input;
  using Out = typename E::Output;
  auto* staged = reinterpret_cast<In*>(bytes);
  block::stage<Shape::threads>(arrivals, staged, lines(e.in), strips);
  int skip = block::phase(e.in + first);
  const In *values = staged + skip, *factors = values;
  auto* results = reinterpret_cast<Out*>(staged);
  char* const more = bytes + Shape::rows(Shape::items(strips), strips.across(), sizeof(In));
  if constexpr (Shape::affine) {
    block::stage<Shape::threads>(arrivals, reinterpret_cast<In*>(more), lines(e.a), strips);
    factors = reinterpret_cast<In*>(more) + block::phase(e.a + first);
  } else if constexpr (!Shape::in_place) {
    results = reinterpret_cast<Out*>(more);
    skip = block::phase(e.out + first);
  }
  return {values, factors, results, skip};
}

// Reduces the `count` rows of a slice, and restarts after every segment end. `head` says that the first row is one.
template <class Shape>
TP_DEVICE __forceinline__ typename Shape::Acc reduce_slice(const SliceRows<Shape>& row, int count, bool head) {
  using M = typename Shape::Monoid;
  typename Shape::Acc running = M::identity();
  block::walk<Shape::slice_rows>(count, row, [&](int, const ScanRow<typename Shape::In>& r) {
    running = append<M>(running, Shape::operand(r.value, r.factor, head));
    head = r.last;
    if (r.last) running = M::identity();
  });
  return running;
}

// Scans the rows of a slice, which `running` precedes, and calls store(i, result).
template <class Shape, class Store>
TP_DEVICE __forceinline__ void scan_slice(const SliceRows<Shape>& row, int count, bool head,
                                          typename Shape::Acc running, bool exclusive, const Store& store) {
  using M = typename Shape::Monoid;
  block::walk<Shape::slice_rows>(count, row, [&](int i, const ScanRow<typename Shape::In>& r) {
    const auto next = append<M>(running, Shape::operand(r.value, r.factor, head));
    store(i, Shape::result(exclusive ? running : next));
    head = r.last;
    running = r.last ? M::identity() : next;
  });
}

template <class E, bool single>
__global__ __launch_bounds__(ScanShape<E>::threads) void scan_tiles(const E e, const block::Bounds<true> bounds,
                                                                    const block::Path path,
                                                                    const block::Strips<single> strips,
                                                                    const ScanTiles<typename ScanShape<E>::Acc> tiles) {
  using Shape = ScanShape<E>;
  using M = typename Shape::Monoid;
  using Acc = typename Shape::Acc;
  extern __shared__ uint4 memory[];
  __shared__ block::SliceScanStorage<Acc, Shape::warps> scan_storage;
  __shared__ Acc tails[block::warp_size], before_tile[block::warp_size];
  __shared__ block::Arrivals arrivals;
  char* const bytes = reinterpret_cast<char*>(memory);
  const int items = Shape::items(strips), tile_marks = Shape::marks(items);
  start_tile<Shape::threads>(memory, tile_marks, arrivals, Shape::affine ? 2 : 1);
  // Take a tile by ticket.
  const auto& states = tiles.states;
  const int64_t ticket = block::take_ticket(block::TileStates<Acc>{nullptr, nullptr, states.tickets});
  const int64_t tile = strips.line(ticket), first_column = strips.first_column(ticket);
  const int columns = strips.columns(first_column);
  const block::Share share(bounds, items, typename Shape::EndItems{}, tiles.splits, tile, tiles.bad);

  // Start to load the rows, in the order of memory. While they are on their way, mark the last rows of segments.
  const int64_t memory_first = (e.reverse ? e.n - share.row - share.rows : share.row) * e.width + first_column;
  const auto lines = [&](auto* array) {
    return block::Lines<std::remove_reference_t<decltype(*array)>>(array, e.n * e.width, memory_first, share.rows,
                                                                   columns);
  };
  const StagedRows<E> staged = stage_rows(e, memory_first, lines, strips, bytes + tile_marks, arrivals);
  auto* const results = staged.results;
  const int skip = staged.skip;
  auto *marks = reinterpret_cast<typename Shape::Mark*>(bytes), *closed = marks + Shape::row_marks(items);
  mark_last_rows<Shape>(bounds, share, marks, closed, tiles.bad);
  __syncthreads();
  arrivals.wait();

  // Each lane reduces the rows of its slice.
  const block::LanePosition<single> position(strips, first_column);
  const TileSlice<Shape> slice(position, share.rows, strips.across(), e.reverse);
  const int64_t begin = bounds.begin(share.segment);
  const bool open = begin < share.row;
  // Only a recurrence needs to know whether the first row of the slice is the head of a segment.
  const bool starts = Shape::affine && slice.count > 0 && (slice.start > 0 ? marks[slice.start - 1] != 0 : !open);
  const SliceRows<Shape> row{staged.values + slice.first, staged.factors + slice.first, marks + slice.start,
                             slice.step};
  const Acc sum = reduce_slice(row, slice.count, starts);
  // Combine the slices of the tile: `before` is what precedes the slice, and `tail` the aggregate of the tile.
  Acc tail;
  const bool closes = position.exists && closed[position.slice] != 0;
  auto before = block::scan_slices<M>(scan_storage, strips, sum, closes, tail);

  // Publish the aggregate. If the first segment began in an earlier tile, look back for what precedes the tile.
  bool through = open;
  for (int w = 0; w < Shape::warps; ++w) through = through && !scan_storage.closed[w];
  if (position.active && position.slice == Shape::slices(strips) - 1) {
    publish_tile(states, tile, first_column + position.column, through, tail);
    tails[position.column] = tail;
  }
  if (open) {
    __syncthreads();
    look_back<M, Shape::warps>(states, tile, path.item(share.segment, begin) / items, through, strips, first_column,
                               tails, before_tile);
    __syncthreads();
    if (before.open && position.active) before.value = M::combine(before_tile[position.column], before.value);
  }

  // Scan the slice again, now starting from what precedes it, and store the tile.
  const int first = slice.first, step = slice.step;
  scan_slice(row, slice.count, starts, before.value, e.exclusive,
             [&](int i, const auto& y) { results[skip + first + i * step] = y; });
  block::staged_is_written();
  __syncthreads();
  block::unstage<Shape::threads>(lines(e.out), results, skip, strips);
}

// Does everything again if the offsets were bad. One warp per segment scans it, and stores only the rows for which a
// search finds this segment.
template <class E>
__global__ void scan_segments(const E e, const unsigned* bad) {
  block::wait_for_launch_before();
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
      const bool head = k == x.offsets.begin(segment);
      Acc mine = M::identity();
      if (k < end) mine = append<M>(mine, Shape::operand(e.in[at], Shape::affine ? e.a[at] : e.in[at], head));
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
  using TileState = block::TileState<Acc>;
  if (e.n == 0 || e.width == 0) return;
  with_strips(e.width, [&](auto strips) {
    constexpr bool single = std::is_same<decltype(strips), block::Strips<true>>::value;
    const block::Path path = Shape::path(e.n, e.segments, strips);
    const int64_t groups = ceil_div(path.tiles, int64_t(tiles_per_group));
    const int64_t supergroups = ceil_div(groups, int64_t(groups_per_supergroup));
    auto* splits = context.workspace<block::Split>(path.tiles + 1);
    // The memory that must be cleared is contiguous: the flag for bad offsets, the tickets, the states.
    const int64_t words = 2 + (path.tiles + groups + supergroups) * e.width * TileState::words;
    auto* cleared = context.workspace<uint64_t>(words);
    auto* bad = reinterpret_cast<unsigned*>(cleared);
    auto* tile_states = reinterpret_cast<TileState*>(cleared + 2);
    const ScanTileStates<Acc> states{tile_states,
                                     tile_states + path.tiles * e.width,
                                     tile_states + (path.tiles + groups) * e.width,
                                     path.tiles,
                                     groups,
                                     supergroups,
                                     reinterpret_cast<unsigned long long*>(cleared + 1)};
    const ScanTiles<Acc> tiles{splits, bad, states};
    const block::Bounds<true> bounds = bounds_of<true>(e.offsets);
    block::find_splits(bounds, path, splits, cleared, words, context.stream);
    launch_tiles("decoupled_lookback", scan_tiles<E, single>, path.tiles * strips.count(), Shape::threads,
                 Shape::shared_bytes(path.items, strips.across()), context, e, bounds, path, strips, tiles);
    launch_tiles("decoupled_lookback", scan_segments<E>, tp::min(ceil_div(e.n, int64_t(256)), int64_t(1024)), 256, 0,
                 context, e, bad);
  });
}

}  // namespace tp::segmented
