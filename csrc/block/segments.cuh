// Segments of any lengths, split evenly: what balanced kernels over (bounds, rows) pairs share.
//
// Walk all rows, and right after the last row of each segment its end: that path visits every row once (1 item) and
// every end once (`end_items`), and tile t gets the items from t * items on, whatever the segments look like. Where a
// tile starts is found by a search over the ends along a diagonal (merge path; Green, McColl and Bader 2012); the end
// of a segment that has rows always stands in the tile of its last row.
//
// Inside a tile the lanes of a warp are `across` columns times as many stretches as fit, a stretch being `places`
// consecutive rows: lane = stretch * across + column. Values lie in shared memory, row by row; a mark at the last row
// of a segment cuts the running value there; join() gives each stretch what precedes it.
//
// Bounds are whatever has n, segments and begin(s) within 0..n, where segment s begins and segment s - 1 ends. They may
// decrease: all counts are clamped, and the tile that holds a decreasing pair notices it.
#pragma once
#include "block/warp.cuh"

namespace tp::block {

// How the path is cut.
struct Path {
  int items, end_items;
  int64_t tiles;

  Path(int64_t n, int64_t segments, int items, int end_items)
      : items(items),
        end_items(end_items),
        tiles(tp::max(int64_t(1), ceil_div(n + segments * end_items, int64_t(items)))) {}

  // The most ends in a tile of `rows` rows.
  TP_HD int most_ends(int rows) const { return (items - rows) / end_items + 2; }
  // The tile that holds the first row of a segment.
  TP_DEVICE int64_t tile_of(int64_t segment, int64_t begin) const { return (begin + segment * end_items) / items; }
};

// Where a tile starts: rows and ends before it.
struct alignas(16) Split {
  int64_t row, segment;
};

// The split at item d, by a warp: each round asks 32 places at once.
template <class Bounds>
TP_DEVICE Split find_split(const Bounds& bounds, const Path& path, int64_t d) {
  const int lane = int(threadIdx.x) % warp_size;
  int64_t low = 0, high = bounds.segments;  // the ends before d are at least `low`, at most `high`
  while (low < high) {
    const int64_t step = (high - low) / (warp_size + 1) + 1, s = low + (lane + 1) * step - 1;
    const bool before = s < high && bounds.begin(s + 1) + s * path.end_items < d;
    const int64_t seen = __popc(__ballot_sync(~0u, before));
    low += seen * step;
    high = tp::min(high, low + step - 1);
  }
  int64_t row = tp::min(tp::max(int64_t(0), d - low * path.end_items), bounds.n);
  if (low > 0) row = tp::max(row, bounds.begin(low));
  if (low < bounds.segments && bounds.begin(low + 1) == row && bounds.begin(low) < row) ++low;
  return {row, low};
}

// First launch: all splits, a warp each; and zeros in `words`, for the next launch.
constexpr int split_threads = 128;

template <class Bounds>
__global__ __launch_bounds__(split_threads) void split_kernel(const Bounds bounds, const Path path, Split* splits,
                                                              uint64_t* words, int64_t count) {
  const int64_t thread = int64_t(blockIdx.x) * split_threads + threadIdx.x, all = int64_t(gridDim.x) * split_threads;
  for (int64_t i = thread; i < count; i += all) words[i] = 0;
  for (int64_t t = thread / warp_size; t <= path.tiles; t += all / warp_size) {
    const int64_t d = tp::min(t * path.items, bounds.n + bounds.segments * path.end_items);
    const Split split = find_split(bounds, path, d);
    if (threadIdx.x % warp_size == 0) splits[t] = split;
  }
}

template <class Bounds>
void find_splits(const Bounds& bounds, const Path& path, Split* splits, uint64_t* words, int64_t count, void* stream) {
  const int64_t blocks = tp::min(ceil_div(path.tiles + 1, int64_t(split_threads / warp_size)), int64_t(1) << 20);
  split_kernel<<<unsigned(blocks), split_threads, 0, cudaStream_t(stream)>>>(bounds, path, splits, words, count);
}

// A tile's share, as counts that nothing in memory can make too large.
struct Share {
  int64_t row, segment;
  int rows, ends;
  bool open;  // segment `segment` began in an earlier tile
  int64_t begin;

  template <class Bounds>
  TP_DEVICE Share(const Bounds& bounds, const Path& path, const Split* splits, int64_t tile, unsigned* bad) {
    const Split from = splits[tile], to = splits[tile + 1];
    row = from.row;
    segment = from.segment;
    rows = int(tp::max(int64_t(0), tp::min(to.row - row, int64_t(path.items))));
    ends = int(tp::max(int64_t(0), tp::min(to.segment - segment, int64_t(path.most_ends(rows)))));
    begin = bounds.begin(segment);
    open = begin < row;
    if (threadIdx.x == 0) {
      if (rows != to.row - row || ends != to.segment - segment) *bad = 1;
      if (tile == 0 && (bounds.begin(0) != 0 || bounds.begin(bounds.segments) != bounds.n)) *bad = 1;
    }
  }
};

// f(k, begin, end) for segment share.segment + k, k < ends, all over the block; decreasing pairs are left out.
template <class Bounds, class F>
TP_DEVICE void each_segment(const Bounds& bounds, const Share& share, int ends, unsigned* bad, F f) {
  for (int k = int(threadIdx.x); k < ends; k += int(blockDim.x)) {
    const int64_t begin = bounds.begin(share.segment + k), end = bounds.begin(share.segment + k + 1);
    if (end < begin) *bad = 1;
    f(k, begin, tp::max(begin, end));
  }
}

namespace detail {
template <class T>
TP_DEVICE void copy_async(T* shared, const T* global) {
  if constexpr (sizeof(T) >= 4) {
    const unsigned to = unsigned(__cvta_generic_to_shared(shared));
    if constexpr (sizeof(T) == 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
    } else {
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(sizeof(T)) : "memory");
    }
  } else {
    *shared = *global;
  }
}

// copy(place in shared memory, place in `data`) for each element of `lines` lines, a warp's lanes side by side.
template <class Copy>
TP_DEVICE void each_element(int lines, int across, int64_t stride, Copy copy) {
  const int lane = int(threadIdx.x) % warp_size, together = warp_size / across, line = lane / across;
  if (line >= together) return;
#pragma unroll 4
  for (int i = int(threadIdx.x) / warp_size * together + line; i < lines; i += int(blockDim.x) / warp_size * together) {
    copy(i * across + lane % across, i * stride + lane % across);
  }
}
}  // namespace detail

// How far into its 16 bytes an address is, in elements.
template <class T>
TP_DEVICE int phase(const T* address) {
  return int(reinterpret_cast<uintptr_t>(address) % 16 / sizeof(T));
}

// Starts copying `lines` lines of `across` elements, `stride` apart, to shared memory, densely; wait_staged() ends it.
// shared + phase(global) is where the first goes. By whole 16 bytes where the addresses allow it.
template <class T>
TP_DEVICE void stage(T* shared, const T* global, int lines, int across, int64_t stride) {
  constexpr int vector = int(16 / sizeof(T));
  const int skip = phase(global);
  if (stride == across) {
    const T* base = global - skip;
    const int last = skip + lines * across;
    for (int i = int(threadIdx.x) * vector; i < last; i += int(blockDim.x) * vector) {
      if (i >= skip && i + vector <= last) {
        detail::copy_async(reinterpret_cast<uint4*>(shared + i), reinterpret_cast<const uint4*>(base + i));
      } else {
        for (int k = tp::max(i, skip); k < tp::min(i + vector, last); ++k) shared[k] = base[k];
      }
    }
  } else if (skip == 0 && across % vector == 0 && stride % vector == 0) {
    auto* to = reinterpret_cast<uint4*>(shared);
    const auto* from = reinterpret_cast<const uint4*>(global);
    detail::each_element(lines, across / vector, stride / vector,
                         [=](int k, int64_t g) { detail::copy_async(to + k, from + g); });
  } else {
    detail::each_element(lines, across, stride,
                         [=](int k, int64_t g) { detail::copy_async(shared + skip + k, global + g); });
  }
}

TP_DEVICE inline void wait_staged() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// The way back: from shared + skip on.
template <class T>
TP_DEVICE void unstage(T* global, const T* shared, int skip, int lines, int across, int64_t stride) {
  constexpr int vector = int(16 / sizeof(T));
  if (stride == across && skip == phase(global)) {
    T* base = global - skip;
    const int last = skip + lines * across;
    for (int i = int(threadIdx.x) * vector; i < last; i += int(blockDim.x) * vector) {
      if (i >= skip && i + vector <= last) {
        *reinterpret_cast<uint4*>(base + i) = *reinterpret_cast<const uint4*>(shared + i);
      } else {
        for (int k = tp::max(i, skip); k < tp::min(i + vector, last); ++k) base[k] = shared[k];
      }
    }
  } else if (stride == across) {
    for (int k = int(threadIdx.x); k < lines * across; k += int(blockDim.x)) global[k] = shared[skip + k];
  } else if (skip == 0 && phase(global) == 0 && across % vector == 0 && stride % vector == 0) {
    auto* to = reinterpret_cast<uint4*>(global);
    const auto* from = reinterpret_cast<const uint4*>(shared);
    detail::each_element(lines, across / vector, stride / vector, [=](int k, int64_t g) { to[g] = from[k]; });
  } else {
    detail::each_element(lines, across, stride, [=](int k, int64_t g) { global[g] = shared[skip + k]; });
  }
}

// A thread's place in its block.
struct Place {
  int stretch, column;
  bool active;
  TP_DEVICE Place(int across) {
    const int lane = int(threadIdx.x) % warp_size, together = warp_size / across;
    const int within = lane / across;
    column = lane - within * across;
    stretch = int(threadIdx.x) / warp_size * together + within;
    active = within < together;
  }
};

template <class Acc, int warps>
struct Joint {
  Acc total[warps][warp_size];
  bool closed[warps];
};

// What each stretch's rows follow: the values since the last closing before it. `open`: none closed before it.
template <class Acc>
struct Before {
  Acc value;
  bool open;
};

// From each stretch its value since its last closing, or of all of it, and whether it closed a segment; the same for
// all columns. `whole` gets, in the last stretch of the block, the value since the last closing of all. By a fixed
// tree; a barrier must stand between two uses of `joint`.
template <class M, int warps>
TP_DEVICE Before<typename M::Acc> join(Joint<typename M::Acc, warps>& joint, typename M::Acc value, bool closed,
                                       int across, typename M::Acc& whole) {
  using Acc = typename M::Acc;
  const int lane = int(threadIdx.x) % warp_size, warp = int(threadIdx.x) / warp_size, last = warp_size / across - 1;
  const unsigned closings = __ballot_sync(~0u, closed), not_above = ~0u >> (warp_size - 1 - lane);
  const int newest = warp_size - 1 - __clz(closings & not_above);  // the closing lane at or before mine, or -1
  for (int distance = across; distance < warp_size; distance *= 2) {
    const Acc left = shuffle_up(value, distance);
    if (lane >= distance && lane - distance > newest - across) value = M::combine(left, value);
  }
  if (lane / across == last) joint.total[warp][lane % across] = value;
  if (lane == 0) joint.closed[warp] = closings != 0;
  Acc within = shuffle_up(value, across);
  if (lane < across) within = M::identity();
  const bool open_within = lane < across || (closings & (not_above >> across)) == 0;
  __syncthreads();
  Acc carry = M::identity();
  bool open = true;
#pragma unroll
  for (int w = 0; w < warps - 1; ++w) {
    if (w >= warp) break;
    const Acc total = joint.total[w][lane % across];
    carry = joint.closed[w] ? total : M::combine(carry, total);
    open = open && !joint.closed[w];
  }
  whole = closings == 0 ? M::combine(carry, value) : value;
  if (!open_within) return {within, false};
  return {lane < across ? carry : M::combine(carry, within), open};
}

}  // namespace tp::block
