// Segments of any lengths, divided into equal shares: what the balanced kernels over offsets have in common.
//
// Merge path (Green, McColl and Bader 2012): walk along all rows, and after the last row of each segment visit the
// segment's end. The path visits every row (1 item) and every end (`end_items` items) once, and tile t gets the items
// from t * items on, whatever the lengths of the segments. A search over the ends finds the start of a tile. The end of
// a segment that has rows is always in the same tile as its last row.
//
// Inside a tile, a slice is a fixed number of consecutive rows. The lanes of a warp cover `across` columns of as many
// slices as fit: lane = slice * across + column. Values are in shared memory, row by row. A mark at the last row of a
// segment ends the running value there; scan_slices() gives each slice the value that precedes it.
//
// Bounds may hold anything: they and all counts are clamped, and a tile detects bounds that decrease or leave it.
#pragma once
#include "block/launch.cuh"
#include "block/staging.cuh"

namespace tp::block {

// Where segments begin and end. begin(s), for s from 0 to segments, is within 0..n; if mirrored, it is counted from the
// end.
template <bool may_mirror>
struct Bounds {
  const int64_t* longs;
  const int32_t* shorts;  // used if longs is null
  bool mirrored_;
  int64_t segments, n;

  TP_DEVICE bool mirrored() const { return may_mirror && mirrored_; }
  TP_DEVICE int64_t stored(int64_t at) const { return longs ? longs[at] : int64_t(shorts[at]); }
  TP_DEVICE int64_t given(int64_t s) const { return mirrored() ? n - stored(segments - s) : stored(s); }
  TP_DEVICE int64_t begin(int64_t s) const { return tp::max(int64_t(0), tp::min(given(s), n)); }
};

// How the path is divided into tiles.
struct Path {
  int items, end_items;
  int64_t tiles;

  Path(int64_t n, int64_t segments, int items, int end_items)
      : items(items),
        end_items(end_items),
        tiles(tp::max(int64_t(1), ceil_div(n + segments * end_items, int64_t(items)))) {}

  // The path item of the first row of a segment that begins at row `begin`.
  TP_DEVICE int64_t item(int64_t segment, int64_t begin) const { return begin + segment * end_items; }
};

// The start of a tile: the number of rows and of ends before it.
struct alignas(16) Split {
  int64_t row, segment;
};

// Finds the split at path item d by `asking` neighbouring lanes, which test that many positions per round.
template <int asking, bool may_mirror>
TP_DEVICE Split find_split(const Bounds<may_mirror>& bounds, const Path& path, int64_t d) {
  const int lane = int(threadIdx.x) % warp_size, mine = lane % asking;
  // Between `low` and `high` ends are before d. The last split is after everything, whatever the bounds hold.
  int64_t high = bounds.segments, low = d < path.item(high, bounds.n) ? 0 : high;
  while (__any_sync(~0u, low < high)) {
    const int64_t step = (high - low) / asking + 1, s = low + (mine + 1) * step - 1;
    const bool before = s < high && bounds.given(s + 1) < d - s * path.end_items;
    const unsigned seen = __ballot_sync(~0u, before) >> (lane - mine) & ((1u << asking) - 1);
    low += __popc(seen) * step;
    high = tp::min(high, low + step - 1);
  }
  int64_t row = tp::min(tp::max(int64_t(0), d - low * path.end_items), bounds.n);
  if (low > 0) row = tp::max(row, bounds.begin(low));
  if (low < bounds.segments && bounds.begin(low + 1) == row && bounds.begin(low) < row) ++low;
  return {row, low};
}

// First launch: finds all splits, and clears `words`. The next launch may start meanwhile.
constexpr int split_threads = 128, split_lanes = 16;

template <bool may_mirror>
__global__ __launch_bounds__(split_threads) void split_kernel(const Bounds<may_mirror> bounds, const Path path,
                                                              Split* splits, uint64_t* words, int64_t count) {
  allow_next_launch();
  const int64_t thread = int64_t(blockIdx.x) * split_threads + threadIdx.x;
  if (thread < count) words[thread] = 0;
  const int64_t tile = thread / split_lanes;
  const int64_t d = tp::min(tile * path.items, path.item(bounds.segments, bounds.n));
  const Split split = find_split<split_lanes>(bounds, path, d);
  if (thread % split_lanes == 0 && tile <= path.tiles) splits[tile] = split;
}

template <bool may_mirror>
void find_splits(const Bounds<may_mirror>& bounds, const Path& path, Split* splits, uint64_t* words, int64_t count,
                 void* stream) {
  const int64_t threads = tp::max((path.tiles + 1) * split_lanes, count);
  split_kernel<<<unsigned(ceil_div(threads, int64_t(split_threads))), split_threads, 0, cudaStream_t(stream)>>>(
      bounds, path, splits, words, count);
}

// A tile's share of the path. Counts are clamped, so that nothing in memory can make them too large.
struct Share {
  int64_t row, segment;
  int rows, ends;

  // The tile's share of a path with `items` items per tile.
  template <bool may_mirror, int end_items>
  TP_DEVICE Share(const Bounds<may_mirror>& bounds, int items, std::integral_constant<int, end_items>,
                  const Split* splits, int64_t tile, unsigned* bad) {
    const Split from = splits[tile], to = splits[tile + 1];
    row = from.row;
    segment = from.segment;
    const int64_t given_rows = to.row - row, given_ends = to.segment - segment;
    rows = given_rows < 0 ? 0 : given_rows > items ? items : int(given_rows);
    const int most = (items - rows) / end_items + 2;
    ends = given_ends < 0 ? 0 : given_ends > most ? most : int(given_ends);
    if (threadIdx.x == 0) {
      if (rows != to.row - row || ends != to.segment - segment) *bad = 1;
      if (tile == 0 && (bounds.given(0) != 0 || bounds.given(bounds.segments) != bounds.n)) *bad = 1;
    }
  }
};

// Calls f(k, begin, end) for segment share.segment + k for all k < count, distributed over the block. begin and end are
// positions in the tile: -1 for rows before it, rows + 1 for rows after it. A decreasing pair is an empty segment. All
// ends must be in the tile, except those of segments from share.ends on; otherwise `bad` is set.
template <int threads, bool may_mirror, class F>
TP_DEVICE void each_segment(const Bounds<may_mirror>& bounds, const Share& share, int count, unsigned* bad, F f) {
  constexpr int batch = 2, seen = warp_size - 1,
                step = threads / warp_size * seen;  // the end that a lane needs is the begin of the next lane
  const int64_t origin = bounds.mirrored() ? bounds.n - share.row : share.row;
  const int64_t base = bounds.mirrored() ? bounds.segments - share.segment : share.segment;
  const int lane = int(threadIdx.x) % warp_size;
  for (int first = int(threadIdx.x) / warp_size * seen; first < count; first += batch * step) {
    int begin[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      const int k = tp::min(first + j * step + lane, count);
      const int64_t given = bounds.stored(bounds.mirrored() ? base - k : base + k) - origin;
      const int64_t position = bounds.mirrored() ? -given : given;
      begin[j] = position < 0 ? -1 : position > share.rows ? share.rows + 1 : int(position);
    }
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      const int end = shuffle_down(begin[j], 1), k = first + j * step + lane;
      if (lane == seen || k >= count) continue;
      if (end < begin[j] || (k<share.ends&& unsigned(end)> unsigned(share.rows))) *bad = 1;
      f(k, begin[j], tp::max(begin[j], tp::min(end, share.rows)));
    }
  }
}

// The slice and the column of a thread.
template <bool single>
struct LanePosition {
  int slice, column;
  bool exists, active;  // exists: the slice exists; active: the column does, too
  TP_DEVICE LanePosition(const Strips<single>& strips, int64_t first_column) {
    const int lane = int(threadIdx.x) % warp_size, within = lane / strips.across();
    column = lane - within * strips.across();
    slice = int(threadIdx.x) / warp_size * strips.together() + within;
    exists = within < strips.together();
    active = exists && (single || first_column + column < strips.width);
  }
};

// Calls use(i, load(i)) for i from 0 to count - 1, where count is at most `most`. Several loads are started before they
// are used.
template <int most, class Load, class Use>
TP_DEVICE void walk(int count, Load load, Use use) {
  constexpr int batch = most % 11 == 0 ? 11 : most % 13 == 0 ? 13 : most % 7 == 0 ? 7 : most;
  int i = 0;
#pragma unroll 1
  for (; i + batch <= count; i += batch) {
    decltype(load(0)) item[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) item[j] = load(i + j);
#pragma unroll
    for (int j = 0; j < batch; ++j) use(i + j, item[j]);
  }
#pragma unroll 1
  for (; i < count; ++i) use(i, load(i));
}

// The shared memory of scan_slices().
template <class Acc, int warps>
struct SliceScanStorage {
  static constexpr int size = warps;
  Acc total[warps][warp_size];
  bool closed[warps];
};

// What precedes the rows of a slice: the combined value since the last segment end before it. `open` says that no
// segment ends before it in the block.
template <class Acc>
struct Before {
  Acc value;
  bool open;
};

// Returns what precedes each slice. `value` is the slice's value since its last segment end, or since its begin;
// `closed` says whether a segment ends in it, which is the same for all columns. In the last slice of the block,
// `whole` becomes the value since the last segment end of all. Values are combined by a fixed tree; a barrier must
// separate two uses of `scan_storage`.
template <class M, int warps, bool single>
TP_DEVICE Before<typename M::Acc> scan_slices(SliceScanStorage<typename M::Acc, warps>& scan_storage,
                                              const Strips<single>& strips, typename M::Acc value, bool closed,
                                              typename M::Acc& whole) {
  using Acc = typename M::Acc;
  const int lane = int(threadIdx.x) % warp_size, warp = int(threadIdx.x) / warp_size, across = strips.across();
  const int column = lane % across, lanes = across * strips.together();
  const unsigned ends = __ballot_sync(~0u, closed), not_above = ~0u >> (warp_size - 1 - lane);
  const int newest =
      warp_size - 1 - __clz(ends & not_above);  // the nearest lane at or before this one with an end, or -1
#pragma unroll
  for (int step = 1; step < warp_size; step *= 2) {
    const int distance = step * across;
    if (distance >= warp_size) break;
    const Acc left = shuffle_up(value, distance);
    if (lane >= distance && lane - distance > newest - across) value = M::combine(left, value);
  }
  if (lane >= lanes - across && lane < lanes) scan_storage.total[warp][column] = value;
  if (lane == 0) scan_storage.closed[warp] = ends != 0;
  Acc within = shuffle_up(value, across);
  if (lane < across) within = M::identity();
  const bool open_within = lane < across || (ends & (not_above >> across)) == 0;
  __syncthreads();
  Acc carry = M::identity();
  bool open = true;
#pragma unroll
  for (int w = 0; w < warps - 1; ++w) {
    if (w >= warp) break;
    const Acc total = scan_storage.total[w][column];
    carry = scan_storage.closed[w] ? total : M::combine(carry, total);
    open = open && !scan_storage.closed[w];
  }
  whole = ends == 0 ? M::combine(carry, value) : value;
  if (!open_within) return {within, false};
  return {lane < across ? carry : M::combine(carry, within), open};
}

}  // namespace tp::block
