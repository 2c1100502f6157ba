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

// A warp a tile; who has far to look back is helped by the whole block. Lanes are `across` columns, a power of 2, times
// as many tails as fit.
template <class M>
__global__ __launch_bounds__(complete_threads) void complete_rows(const M matrix, const block::Path path,
                                                                  const OpenEnds<typename M::Acc> ends, int across) {
  using Acc = typename M::Acc;
  constexpr int near = 256;
  __shared__ int far[complete_warps], far_count;
  __shared__ Acc partial[complete_warps][warp_size];
  const auto b = matrix.bind(simt::Pointers{});
  const int lane = int(threadIdx.x) % warp_size, warp = int(threadIdx.x) / warp_size, together = warp_size / across;
  const int64_t c = int64_t(blockIdx.y) * across + lane % across;
  const bool active = c < b.a.k;
  if (*ends.bad) {
    for (int64_t row = int64_t(blockIdx.x) * complete_warps + warp; row < b.a.rows;
         row += int64_t(gridDim.x) * complete_warps) {
      Acc sum(0);
      const int64_t end = b.pointer(row + 1);
      for (int64_t at = b.pointer(row) + lane / across; active && at < end; at += together) sum += term<Csr>(b, at, c);
      for (int distance = across; distance < warp_size; distance *= 2) sum += block::shuffle_down(sum, distance);
      if (active && lane < across) b.store(row, c, sum);
    }
    return;
  }
  if (threadIdx.x == 0) far_count = 0;
  __syncthreads();
  // How many tiles before `tile` hold entries of the row that ends there first.
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
    for (int64_t t = from; active && t < to; t += step) sum += ends.tails[t * b.a.k + c];
    return sum;
  };
  const int64_t first = int64_t(blockIdx.x) * complete_warps;
  int64_t row;
  const int64_t length = look(first + warp, row);
  if (length > near) {
    if (lane == 0) far[atomicAdd(&far_count, 1)] = warp;
  } else if (length > 0) {
    const int64_t tile = first + warp;
    Acc sum = tails(tile - length + lane / across, tile, together);
    for (int distance = across; distance < warp_size; distance *= 2) sum += block::shuffle_down(sum, distance);
    if (active && lane < across) b.store(row, c, sum + ends.heads[tile * b.a.k + c]);
  }
  __syncthreads();
  for (int i = 0; i < far_count; ++i) {
    const int64_t tile = first + far[i], back = look(tile, row);
    partial[warp][lane] = tails(tile - back + warp * together + lane / across, tile, complete_warps * together);
    __syncthreads();
    if (int(threadIdx.x) < across && active) {
      Acc sum = ends.heads[tile * b.a.k + c];
      for (int p = 0; p < complete_warps * together; ++p) sum += partial[p / together][p % together * across + lane];
      b.store(row, c, sum);
    }
    __syncthreads();
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
  const dim3 blocks(unsigned(ceil_div(path.tiles, int64_t(complete_warps))), unsigned(ceil_div(k, int64_t(across))));
  complete_rows<<<blocks, complete_threads, 0, cudaStream_t(context.stream)>>>(matrix, path, ends, across);
  check_launch("merge_path");
}

}  // namespace tp::sparse
