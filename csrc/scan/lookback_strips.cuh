// decoupled_lookback over interleaved rows (inner > 1): element k of neighbouring rows lies side by side. A strip is
// `warp_size` neighbouring rows, one a lane; a tile is `places` places of a strip, split over the warps of a block in
// order. Loads and stores of a warp are one line of memory, and all exchange is between warps, lane by lane.
#pragma once
#include "block/lookback.cuh"
#include "scan/elements.h"

namespace tp::scan::lookback {

constexpr int strip_tiles_a_group = 64, threads = 256, warps = threads / block::warp_size;

template <class E>
struct StripTile {
  static constexpr int items = E::Monoid::id == OpId::affine ? 8 : 16;  // places a warp
  static constexpr int places = items * warps;
};

template <class E>
__global__ __launch_bounds__(threads) void strips_kernel(const E e, const block::Chain<typename E::Acc> chain,
                                                         int64_t strips, int64_t tiles, int64_t across) {
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  constexpr int items = StripTile<E>::items, run = strip_tiles_a_group / warps;
  __shared__ Acc sums[warps][block::warp_size];
  const int lane = int(threadIdx.x) % block::warp_size, warp = int(threadIdx.x) / block::warp_size;
  const auto x = e.bind(simt::Pointers{});
  for (int64_t ticket = block::take_ticket(chain); ticket < strips * tiles;
       ticket += chain.tickets ? strips * tiles : gridDim.x) {
    const int64_t strip = ticket % strips, tile = ticket / strips;  // a strip's earlier tiles have smaller tickets
    const int64_t column = strip % across * block::warp_size + lane, row = strip / across * e.inner + column;
    const int64_t first = tile * StripTile<E>::places + warp * items;
    const bool active = column < e.inner;

    Acc value[items], total = M::identity();
#pragma unroll
    for (int i = 0; i < items; ++i) value[i] = active && first + i < e.n ? x.element(row, first + i) : M::identity();
#pragma unroll
    for (int i = 0; i < items; ++i) total = M::combine(total, value[i]);
    sums[warp][lane] = total;
    __syncthreads();
    Acc before = M::identity();
    for (int w = 0; w < warp; ++w) before = M::combine(before, sums[w][lane]);

    if (tiles > 1) {
      const int64_t group = tile / strip_tiles_a_group;
      const auto cell = [&](int64_t t) { return (t * strips + strip) * block::warp_size + lane; };
      const Acc whole = M::combine(before, total);  // in the last warp: of the tile
      if (warp == warps - 1) chain.tiles[cell(tile)].publish(whole);
      __syncthreads();  // all have read sums; now each warp sums a stretch of the group's earlier tiles
      Acc stretch = M::identity();
      for (int64_t t = group * strip_tiles_a_group + warp * run, i = 0; i < run && t + i < tile; ++i) {
        stretch = M::combine(stretch, chain.tiles[cell(t + i)].wait());
      }
      sums[warp][lane] = stretch;
      __syncthreads();
      Acc previous = group > 0 ? chain.groups[cell(group - 1)].wait() : M::identity();
      for (int w = 0; w < warps; ++w) previous = M::combine(previous, sums[w][lane]);
      if (warp == warps - 1 && tile % strip_tiles_a_group == strip_tiles_a_group - 1) {
        chain.groups[cell(group)].publish(M::combine(previous, whole));
      }
      before = M::combine(previous, before);
    }
#pragma unroll
    for (int i = 0; i < items; ++i) {
      if (!active || first + i >= e.n) break;
      const Acc after = M::combine(before, value[i]);
      x.store(row, first + i, e.exclusive ? before : after);
      before = after;
    }
    __syncthreads();  // sums is free again
  }
}

template <class E>
void scan_strips(const E& e, Context& context) {
  const int64_t across = ceil_div(e.inner, int64_t(block::warp_size)), strips = e.rows / e.inner * across;
  const int64_t tiles = ceil_div(e.n, int64_t(StripTile<E>::places));
  block::Chain<typename E::Acc> chain{};
  if (tiles > 1) {
    require(strips * tiles <= 2147483647, "decoupled_lookback: too many tiles for one launch");
    const int64_t groups = ceil_div(tiles, int64_t(strip_tiles_a_group));
    chain = block::make_chain<typename E::Acc>(context, tiles * strips * block::warp_size,
                                               groups * strips * block::warp_size);
  }
  const int64_t grid = tp::min(strips * tiles, int64_t(2147483647));
  strips_kernel<<<unsigned(grid), threads, 0, cudaStream_t(context.stream)>>>(e, chain, strips, tiles, across);
  check_launch("decoupled_lookback");
}

}  // namespace tp::scan::lookback
