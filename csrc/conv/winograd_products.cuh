// The products of Winograd's F(2 x 2, 3 x 3) in one kernel: what winograd_fused.cuh (fprop and dgrad) and
// winograd_fused_wgrad.cuh share.
//
// A warp has two of the 16 components, and all their sums in registers. A lane has 8 x 8 sums per component, for which
// it reads 16 values per step, as in a matrix product (block/fma_tile.cuh).
#pragma once
#include "block/fma_tile.cuh"
#include "block/warp.cuh"
#include "conv/winograd_transforms.h"

namespace tp::conv {

// The shape of a block. A warp multiplies two of the 16 components.
struct WinogradBlock {
  static constexpr int warp_components = 2, warps = winograd_tile::components / warp_components;
  static constexpr int maps = 64, tiles = 32, threads = warps * block::warp_size;
  static constexpr int slab = 8;  // the inner dimension of a stage: channels, or tiles in wgrad
  // One component as a matrix product: its rows are maps, its columns tiles. The padding lets 8 channels x 4 tiles be
  // written without bank conflicts.
  static constexpr int pitch = tiles + 4;
  using Product = block::FmaTile<maps, tiles, 8, 8, slab, 2, 1, 4, warps>;
  static constexpr int filter_values = slab * winograd_tile::components * maps,
                       input_values = winograd_tile::components * slab * pitch,
                       stage_values = filter_values + input_values;
  // Half of the sums, as [component][tile][map]. The padding lets quads of maps be written without bank conflicts.
  static constexpr int half = maps / 2, sum_pitch = half + 4,
                       sum_values = winograd_tile::components * tiles * sum_pitch;
};

// Adds the products of a slab for the components of this thread's warp. The values of a channel are `row_pitch` apart
// in the left factor, [channel][component][map], and the right one is [component][channel][tile].
template <int row_pitch>
TP_DEVICE void multiply_slab(const float* left, const float* right,
                             float (&sum)[WinogradBlock::warp_components][8][8]) {
  using Product = WinogradBlock::Product;
  constexpr int steps = WinogradBlock::slab * WinogradBlock::warp_components, unrolled = 8;
  const int component = int(threadIdx.x) / block::warp_size * WinogradBlock::warp_components;
  const float* rows = left + component * WinogradBlock::maps + Product::row(0);
  const float* cols = right + component * WinogradBlock::slab * WinogradBlock::pitch + Product::col(0);
  block::FmaFragment<Product, float> fragments[2];
  fragments[0].load(rows, cols);
#pragma unroll 1
  for (int first = 0; first < steps; first += unrolled) {
#pragma unroll
    for (int i = 0; i < unrolled; ++i) {
      if (i + 1 < unrolled || first + unrolled < steps) {
        const int k = (i + 1) / WinogradBlock::warp_components, p = (i + 1) % WinogradBlock::warp_components;
        fragments[(i + 1) % 2].load(rows + k * row_pitch + p * WinogradBlock::maps,
                                    cols + (p * WinogradBlock::slab + k) * WinogradBlock::pitch);
      }
      fragments[i % 2].add_to(sum[i % WinogradBlock::warp_components]);
    }
    rows += unrolled / WinogradBlock::warp_components * row_pitch;
    cols += unrolled / WinogradBlock::warp_components * WinogradBlock::pitch;
  }
}

// Writes the sums of a thread for half of the maps as [component][tile][map].
TP_DEVICE inline void stage_sums(float* to, const float (&sum)[WinogradBlock::warp_components][8][8], int half) {
  using Product = WinogradBlock::Product;
  using Quad = block::Vector<float, 4>;
  const int component = int(threadIdx.x) / block::warp_size * WinogradBlock::warp_components;
#pragma unroll
  for (int p = 0; p < WinogradBlock::warp_components; ++p) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      Quad quad;
#pragma unroll
      for (int i = 0; i < 4; ++i) quad.v[i] = half ? sum[p][4 + i][j] : sum[p][i][j];
      const int tile = Product::col(j / 4) + j % 4;
      *reinterpret_cast<Quad*>(to + ((component + p) * WinogradBlock::tiles + tile) * WinogradBlock::sum_pitch +
                               Product::row(0)) = quad;
    }
  }
}

}  // namespace tp::conv
