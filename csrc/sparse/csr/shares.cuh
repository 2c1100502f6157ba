// What the two forms of merge_path share: the path over entries and row ends is cut into tiles (block/segments.cuh), a
// tile stores the rows that end in it, and leaves two sums of each column: `head`, what it holds of a row that began in
// an earlier tile and ends here, and `tail`, its entries after its last row end. A last launch adds to a head the tails
// before it, back to the tile where the row began; and, should any tile have noticed pointers that decrease or do not
// cover all entries, does everything once more, row by row.
#pragma once
#include "block/segments.cuh"
#include "sparse/csr/lanes.cuh"

namespace tp::sparse {

template <class Acc>
struct OpenEnds {
  block::Split* splits;  // [tiles + 1]
  unsigned* bad;
  Acc *heads, *tails;  // [tiles, k]
};

template <class M>
block::Bounds<false> bounds_of(const M& matrix) {
  const Args& a = matrix.a;
  return {a.long_index ? static_cast<const int64_t*>(a.ptrs) : nullptr, static_cast<const int32_t*>(a.ptrs), false,
          a.rows, a.entries};
}

constexpr int complete_threads = 256, complete_warps = complete_threads / warp_size;

// Tiles a block completes: of one column most take a thread, else a warp.
TP_HD constexpr int tiles_to_complete(int64_t k) { return k == 1 ? complete_threads : 2 * complete_warps; }

// Lanes are `across` columns of Y, a power of 2, times as many entries or tails as fit. A fixed tree adds up the
// latter.
template <class Acc>
TP_DEVICE Acc join_lanes(Acc sum, int across) {
  for (int distance = across; distance < warp_size; distance *= 2) sum += block::shuffle_down(sum, distance);
  return sum;
}

// Column c of all rows, a warp each.
template <class B>
TP_DEVICE void multiply_all_rows(const B& b, int64_t warp, int64_t warps, int across, int64_t c) {
  const int lane = int(threadIdx.x) % warp_size;
  for (int64_t row = warp; row < b.a.rows; row += warps) {
    typename B::Acc sum(0);
    const int64_t end = b.pointer(row + 1);
    for (int64_t at = b.pointer(row) + lane / across; c < b.a.k && at < end; at += warp_size / across)
      sum += term<Csr>(b, at, c);
    sum = join_lanes(sum, across);
    if (lane < across && c < b.a.k) b.store(row, c, sum);
  }
}

// A thread looks at each of the block's tiles; of one column it adds up a few tails itself. A warp takes what is
// longer, and the block what is very long.
template <class M>
__global__ __launch_bounds__(complete_threads) void complete_rows(const M matrix, const block::Path path,
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
  if (*ends.bad) {
    return multiply_all_rows(b, int64_t(blockIdx.x) * complete_warps + warp, int64_t(gridDim.x) * complete_warps,
                             across, c);
  }
  if (thread == 0) found_count = 0;
  __syncthreads();
  // How many tiles before `tile` hold entries of the row that is the first to end there.
  const auto look = [&](int64_t tile, int64_t& row) -> int64_t {
    if (tile >= path.tiles) return 0;
    row = ends.splits[tile].segment;
    if (row >= ends.splits[tile + 1].segment || row >= b.a.rows) return 0;
    const int64_t begin = b.pointer(row);
    return begin >= ends.splits[tile].row ? 0 : tile - path.item(row, begin) / path.items;
  };
  const auto tails = [&](int64_t from, int64_t to, int64_t step) {
    Acc sum(0);
#pragma unroll 4
    for (int64_t t = from; active && t < to; t += step) sum += ends.tails[t * k + c];
    return sum;
  };
  const int tiles = tiles_to_complete(k);
  const int64_t first = int64_t(blockIdx.x) * tiles;
  int64_t row;
  const int64_t length = thread < tiles ? look(first + thread, row) : 0;
  if (k == 1 && length > 0 && length <= few) {
    b.store(row, 0, tails(first + thread - length, first + thread, 1) + ends.heads[first + thread]);
  } else if (length > 0) {
    found[atomicAdd(&found_count, 1)] = thread;
  }
  __syncthreads();
  for (int i = warp; i < found_count; i += complete_warps) {
    const int64_t tile = first + found[i], back = look(tile, row);
    if (back > many) continue;
    const Acc sum = join_lanes(tails(tile - back + lane / across, tile, together), across);
    if (active && lane < across) b.store(row, c, sum + ends.heads[tile * k + c]);
  }
  for (int i = 0; i < found_count; ++i) {
    const int64_t tile = first + found[i], back = look(tile, row);
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

// launch(splits and ends) runs the tiles, between the search for the splits and the completion.
template <class M, class Launch>
void by_path(const M& matrix, const block::Path& path, Context& context, Launch launch) {
  using Acc = typename M::Acc;
  const int64_t k = matrix.a.k;
  auto* splits = context.workspace<block::Split>(path.tiles + 2);
  auto* bad = reinterpret_cast<uint64_t*>(splits + path.tiles + 1);
  const OpenEnds<Acc> ends{splits, reinterpret_cast<unsigned*>(bad), context.workspace<Acc>(path.tiles * k),
                           context.workspace<Acc>(path.tiles * k)};
  block::find_splits(bounds_of(matrix), path, splits, bad, 1, context.stream);
  launch(ends);
  int across = 1;
  while (across < warp_size && across < k) across *= 2;
  const dim3 blocks(unsigned(ceil_div(path.tiles, int64_t(tiles_to_complete(k)))),
                    unsigned(ceil_div(k, int64_t(across))));
  complete_rows<<<blocks, complete_threads, 0, cudaStream_t(context.stream)>>>(matrix, path, ends, across);
  check_launch("merge_path");
}

}  // namespace tp::sparse
