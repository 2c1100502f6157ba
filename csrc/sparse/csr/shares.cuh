// What the variants of merge_path share. The path over entries and row ends is divided into tiles (block/segments.cuh).
// A tile stores the rows that end in it, and two more sums per column: its `head`, which is its part of the first row
// that ends in it if that row began in an earlier tile, and its `tail`, which is the sum of its entries after its last
// row end. The last launch adds to each head the tails of the tiles before it, back to the tile in which the row began.
// If a tile detects pointers that decrease or do not cover all entries, the last launch instead multiplies everything
// again, row by row. Each launch may start while the previous one is finishing.
#pragma once
#include "block/segments.cuh"
#include "core/partition_point.h"
#include "sparse/csr/lanes.cuh"

namespace tp::sparse {

template <class Acc>
struct OpenEnds {
  block::Split* splits;  // [tiles + 1]: entries and rows before each tile
  unsigned* bad;
  Acc *heads, *tails;  // [tiles, k]
};

// A tile's share of the path, clamped so that no split can make it leave the matrix. Rows and entries count from the
// tile's first ones.
struct Tile {
  int64_t entry, row;
  int entries, rows;
  bool cut;  // row 0 began in an earlier tile
  bool bad;

  template <class B>
  TP_DEVICE Tile(const B& b, const block::Path& path, const block::Split* splits, int64_t tile) {
    const block::Split from = splits[tile], to = splits[tile + 1];
    entry = tp::max(int64_t(0), tp::min(from.row, b.a.entries));
    row = tp::max(int64_t(0), tp::min(from.segment, b.a.rows));
    const int64_t most_entries = tp::min(b.a.entries - entry, int64_t(2 * path.items));
    const int64_t most_rows = tp::min(b.a.rows - row, int64_t(path.items + 2));
    entries = int(tp::max(int64_t(0), tp::min(to.row - entry, most_entries)));
    rows = int(tp::max(int64_t(0), tp::min(to.segment - row, most_rows)));
    cut = rows > 0 && b.pointer(row) < entry;
    bad = entry != from.row || row != from.segment || entry + entries != to.row || row + rows != to.segment;
    bad |= tile == 0 && (int64_t(b.ptrs[0]) != 0 || int64_t(b.ptrs[b.a.rows]) != b.a.entries);
  }
  // The end of row r of the tile: -1 if it is before the tile, and `beyond` if it is after the tile or if there is no
  // such row.
  template <class B>
  TP_DEVICE int end(const B& b, int r) const {
    constexpr int beyond = 1 << 30;
    if (r >= rows) return beyond;
    const int64_t end = int64_t(b.ptrs[row + r + 1]) - entry;
    return end < 0 ? -1 : end > entries ? beyond : int(end);
  }
};

// First launch: finds where tiles start, with `find_rows` rows per thread. If row ends count as items, a row that is no
// longer than a tile is not divided: all of it belongs to the tile in which it ends. Pointers that decrease may leave a
// split unwritten, so tiles clamp what they read.
constexpr int find_threads = 256, find_rows = 8;

// The start of a tile whose first item belongs to one of the rows from `row` up to `past`.
template <class B>
TP_DEVICE block::Split split_among(const B& b, const block::Path& path, int64_t tile, int64_t row, int64_t past) {
  const int64_t item = tile * path.items;
  while (row + 1 < past && path.item(row + 1, b.ptrs[row + 1]) <= item) ++row;
  const int64_t begin = b.ptrs[row], end = b.ptrs[row + 1], entry = item - path.item(row, 0);
  if (entry == end && begin < end) return {end, row + 1};
  return {end - begin > path.items * path.end_items ? entry : begin, row};
}

// By the first thread: the ends of the path, which no search finds.
template <class B>
TP_DEVICE void store_ends(const B& b, const block::Path& path, block::Split* splits, unsigned* bad) {
  splits[0] = {0, 0};
  splits[path.tiles] = {b.a.entries, b.a.rows};
  *bad = 0;
}

template <class M>
__global__ __launch_bounds__(find_threads) void find_tiles(const M matrix, const block::Path path, block::Split* splits,
                                                           unsigned* bad) {
  block::allow_next_launch();
  const auto b = matrix.bind(simt::Pointers{});
  const int64_t thread = int64_t(blockIdx.x) * find_threads + threadIdx.x;
  if (thread == 0) store_ends(b, path, splits, bad);
  const int64_t row = tp::min(thread * find_rows, b.a.rows), past_row = tp::min(row + find_rows, b.a.rows);
  // The first tile that begins with an item of `row` or later.
  const auto tile_from = [&](int64_t row) {
    const int64_t item = path.item(row, b.pointer(row));
    return tp::max(int64_t(1), tp::min(quotient(item + path.items - 1, path.items), path.tiles));
  };
  const int64_t first = tile_from(row), past = tile_from(past_row);
  // Each thread finds the first few tiles that start in its rows. If they hold more tiles, all lanes of the warp share
  // the rest.
  constexpr int few = 2;
  for (int64_t tile = first; tile < tp::min(past, first + few); ++tile) {
    splits[tile] = split_among(b, path, tile, row, past_row);
  }
  for (unsigned todo = __ballot_sync(~0u, past - first > few); todo != 0; todo &= todo - 1) {
    const int lane = __ffs(todo) - 1;
    const int64_t low = block::broadcast(row, lane), high = block::broadcast(past_row, lane);
    const int64_t stop = block::broadcast(past, lane);
    for (int64_t tile = block::broadcast(first, lane) + few + threadIdx.x % warp_size; tile < stop; tile += warp_size) {
      splits[tile] = split_among(b, path, tile, low, high);
    }
  }
}

// The same with one thread per tile, which searches the pointers. This is faster where rows are so long that the
// threads of find_tiles would find several tiles each, one after another.
template <class M>
__global__ __launch_bounds__(find_threads) void search_tiles(const M matrix, const block::Path path,
                                                             block::Split* splits, unsigned* bad) {
  block::allow_next_launch();
  const auto b = matrix.bind(simt::Pointers{});
  const int64_t tile = int64_t(blockIdx.x) * find_threads + threadIdx.x, item = tile * path.items;
  if (tile == 0) {
    store_ends(b, path, splits, bad);
  } else if (tile < path.tiles) {
    const int64_t row =
        partition_point(int64_t(0), b.a.rows - 1, [&](int64_t r) { return path.item(r + 1, b.ptrs[r + 1]) <= item; });
    splits[tile] = split_among(b, path, tile, row, row + 1);
  }
}

constexpr int complete_threads = 256, complete_warps = complete_threads / warp_size;

// The number of tiles per block. With one column, one thread completes most heads; otherwise a warp does.
TP_HD constexpr int tiles_to_complete(int64_t k) { return k == 1 ? complete_threads : 8 * complete_warps; }

// In complete_rows, a warp covers `across` columns of Y, a power of 2, and warp_size / across entries or tails of each.
// This adds up the latter by a fixed tree; the first `across` lanes get the sums.
template <class Acc>
TP_DEVICE Acc join_lanes(Acc sum, int across) {
  for (int distance = across; distance < warp_size; distance *= 2) sum += block::shuffle_down(sum, distance);
  return sum;
}

// Multiplies column c of all rows, one warp per row. For a blocked matrix, row pointers do not tell where entries are,
// so its rows count as empty.
template <class B>
TP_DEVICE void multiply_all_rows(const B& b, int64_t warp, int64_t warps, int across, int64_t c) {
  const int lane = int(threadIdx.x) % warp_size;
  for (int64_t row = warp; row < b.a.rows; row += warps) {
    typename B::Acc sum(0);
    if constexpr (std::is_same<typename B::A, CsrArgs>::value) {
      const int64_t end = b.pointer(row + 1);
      for (int64_t at = b.pointer(row) + lane / across; c < b.a.k && at < end; at += warp_size / across)
        sum += term<Csr>(b, at, c);
      sum = join_lanes(sum, across);
    }
    if (lane < across && c < b.a.k) b.store(row, c, sum);
  }
}

// The number of tiles before `tile` that hold entries of the first row that ends in it; `row` becomes that row.
template <class B, class Acc>
TP_DEVICE __forceinline__ int64_t earlier_tiles(const B& b, const block::Path& path, const OpenEnds<Acc>& ends,
                                                int64_t tile, int64_t& row) {
  if (tile >= path.tiles) return 0;
  row = ends.splits[tile].segment;
  if (row < 0 || row >= ends.splits[tile + 1].segment || row >= b.a.rows) return 0;
  const int64_t begin = b.pointer(row);
  return begin >= ends.splits[tile].row ? 0 : tile - path.item(row, begin) / path.items;
}

// Last launch: completes the rows that cross tiles. For each tile of the block, one thread counts the tails that
// precede the tile's head. With one column the thread itself adds a few tails; more of them are added by a warp, and
// very many by the whole block.
template <class M>
__global__ __launch_bounds__(complete_threads, 8) void complete_rows(const M matrix, const block::Path path,
                                                                     const OpenEnds<typename M::Acc> ends, int across) {
  using Acc = typename M::Acc;
  constexpr int few = 8, many = 512;
  __shared__ int found[complete_threads], found_count;
  __shared__ Acc partial[complete_threads];
  const auto b = matrix.bind(simt::Pointers{});
  const int thread = int(threadIdx.x), lane = thread % warp_size, warp = thread / warp_size;
  const int together = warp_size / across;
  const int64_t k = b.a.k, c = int64_t(blockIdx.y) * across + lane % across;
  const bool active = c < k;
  // Each thread counts the tiles before its own. If the pointers are bad, all rows are multiplied again instead.
  if (thread == 0) found_count = 0;
  block::wait_for_launch_before();
  const bool bad = *ends.bad;  // loaded together with the splits
  const int tiles = tiles_to_complete(k);
  const int64_t first = int64_t(blockIdx.x) * tiles;
  int64_t row;
  const int64_t length = thread < tiles ? earlier_tiles(b, path, ends, first + thread, row) : 0;
  if (bad) {
    return multiply_all_rows(b, int64_t(blockIdx.x) * complete_warps + warp, int64_t(gridDim.x) * complete_warps,
                             across, c);
  }
  __syncthreads();
  const auto tails = [&](int64_t from, int64_t to, int64_t step) {
    Acc sum(0);
#pragma unroll 4
    for (int64_t t = from; active && t < to; t += step) sum += ends.tails[t * k + c];
    return sum;
  };
  // Heads with few tails before them, each by one thread.
  if (k == 1 && length > 0 && length <= few) {
    b.store(row, 0, tails(first + thread - length, first + thread, 1) + ends.heads[first + thread]);
  } else if (length > 0) {
    found[atomicAdd(&found_count, 1)] = thread;
  }
  __syncthreads();
  // Heads with more tails, one warp per head.
  for (int i = warp; i < found_count; i += complete_warps) {
    const int64_t tile = first + found[i], back = earlier_tiles(b, path, ends, tile, row);
    if (back > many) continue;
    const Acc sum = join_lanes(tails(tile - back + lane / across, tile, together), across);
    if (active && lane < across) b.store(row, c, sum + ends.heads[tile * k + c]);
  }
  // Heads with very many tails, one after another by the whole block.
  for (int i = 0; i < found_count; ++i) {
    const int64_t tile = first + found[i], back = earlier_tiles(b, path, ends, tile, row);
    if (back <= many) continue;
    __syncthreads();
    partial[thread] = tails(tile - back + warp * together + lane / across, tile, complete_warps * together);
    __syncthreads();
    if (thread >= across || !active) continue;
    Acc sum = ends.heads[tile * k + c];
    for (int p = thread; p < complete_threads; p += across) sum += partial[p];
    b.store(row, c, sum);
  }
}

template <class M>
void complete_path(const M& matrix, const block::Path& path, const OpenEnds<typename M::Acc>& ends, Context& context) {
  int across = 1;
  while (across < warp_size && across < matrix.a.k) across *= 2;
  const dim3 blocks(unsigned(ceil_div(path.tiles, int64_t(tiles_to_complete(matrix.a.k)))),
                    unsigned(ceil_div(matrix.a.k, int64_t(across))));
  block::launch_early(complete_rows<M>, blocks, complete_threads, 0, context, matrix, path, ends, across);
}

// Runs launch(ends), which multiplies the tiles, between the search for them and the completion.
template <class M, class Launch>
void by_path(const M& matrix, const block::Path& path, Context& context, Launch launch) {
  using Acc = typename M::Acc;
  const int64_t k = matrix.a.k;
  auto* splits = context.workspace<block::Split>(path.tiles + 2);
  const OpenEnds<Acc> ends{splits, reinterpret_cast<unsigned*>(splits + path.tiles + 1),
                           context.workspace<Acc>(path.tiles * k), context.workspace<Acc>(path.tiles * k)};
  const bool long_rows = path.tiles * find_rows >= matrix.a.rows;  // a thread of find_tiles would find a tile or more
  const int64_t find_blocks =
      ceil_div(long_rows ? path.tiles : ceil_div(matrix.a.rows, int64_t(find_rows)), int64_t(find_threads));
  const auto find = long_rows ? search_tiles<M> : find_tiles<M>;
  find<<<unsigned(find_blocks), find_threads, 0, cudaStream_t(context.stream)>>>(matrix, path, splits, ends.bad);
  launch(ends);
  complete_path(matrix, path, ends, context);
  check_launch("merge_path");
}

}  // namespace tp::sparse
