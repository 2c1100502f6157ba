// The product of register_tiled for many rows or columns and a short inner dimension that is contiguous in both
// factors, in float32: a fully connected layer with few inputs.
//
// A block copies all that its tile needs to shared memory at once, in vectors along the inner dimension, and waits a
// single time; several blocks per multiprocessor wait and compute in turn. Each of two groups of threads adds up every
// other vector, and the sums of the groups are added up in order. A thread has 4 x 4 sums.
#pragma once
#include "block/copies.cuh"
#include "block/load_store.cuh"
#include "core/context.h"

namespace tp::linear {

struct ShortTile {
  static constexpr int rows = 32, cols = 32, side = 4, groups = 2, residents = 6, most_vectors = 32;
  static constexpr int row_lanes = rows / side, col_lanes = cols / side, group_threads = row_lanes * col_lanes,
                       threads = group_threads * groups;
  static constexpr int sums_pitch = cols + 4;  // a warp stores its sums to 32 different banks
};

struct ShortProduct {
  const float *a, *b, *bias;
  float* out;
  int64_t a_stride, b_stride, rows, cols, col_tiles;
  int vectors, pitch;  // of four elements; the pitch is odd, so that neighbouring sides are in different banks
};

// Begins to copy `count` sides, a warp per side; sides from `left` on are zeros.
TP_DEVICE inline void copy_sides(const float* from, int64_t stride, int64_t left, int count, const ShortProduct& p,
                                 block::Vector<float, 4>* to) {
  const int lane = int(threadIdx.x) % 32;
  if (lane >= p.vectors) return;
  for (int side = int(threadIdx.x) / 32; side < count; side += ShortTile::threads / 32) {
    const bool exists = side < left;
    block::copy_or_zero<16>(to + side * p.pitch + lane, exists ? from + side * stride + lane * 4 : from, exists);
  }
}

// Adds up the groups' sums of a tile, in `sums` [group][row][col], and writes four neighbours at a time.
TP_DEVICE __forceinline__ void store_totals(const ShortProduct& p, const float* sums, int64_t first_row,
                                            int64_t first_col) {
  using Tile = ShortTile;
  using V = block::Vector<float, 4>;
  for (int i = int(threadIdx.x); i < Tile::rows * Tile::cols / 4; i += Tile::threads) {
    const int y = i / (Tile::cols / 4), x = i % (Tile::cols / 4) * 4;
    if (first_row + y >= p.rows || first_col + x >= p.cols) continue;
    V total = *reinterpret_cast<const V*>(sums + y * Tile::sums_pitch + x);
#pragma unroll
    for (int g = 1; g < Tile::groups; ++g) {
      const V more = *reinterpret_cast<const V*>(sums + (g * Tile::rows + y) * Tile::sums_pitch + x);
#pragma unroll
      for (int k = 0; k < 4; ++k) total.v[k] += more.v[k];
    }
    float* const to = p.out + (first_row + y) * p.cols + first_col + x;
    const int64_t left = p.cols - first_col - x;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (p.bias && k < left) total.v[k] += p.bias[first_col + x + k];
    }
    if (p.cols % 4 == 0) {
      *reinterpret_cast<V*>(to) = total;
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (k < left) to[k] = total.v[k];
      }
    }
  }
}

__global__ void __launch_bounds__(ShortTile::threads, ShortTile::residents)
    short_inner_kernel(const __grid_constant__ ShortProduct p) {
  using Tile = ShortTile;
  using V = block::Vector<float, 4>;
  extern __shared__ __align__(16) unsigned char pool[];
  V *const a = reinterpret_cast<V*>(pool), *const b = a + Tile::rows * p.pitch;
  const int64_t first_row = int64_t(blockIdx.x) / p.col_tiles * Tile::rows,
                first_col = int64_t(blockIdx.x) % p.col_tiles * Tile::cols;
  copy_sides(p.a + first_row * p.a_stride, p.a_stride, p.rows - first_row, Tile::rows, p, a);
  copy_sides(p.b + first_col * p.b_stride, p.b_stride, p.cols - first_col, Tile::cols, p, b);
  // Neighbouring lanes share a row or a column, as in block/fma_tile.cuh.
  const int group = int(threadIdx.x) / Tile::group_threads, lane = int(threadIdx.x) % 32;
  const int row = lane / 2 % 8, col = int(threadIdx.x) % Tile::group_threads / 32 * 4 + lane / 16 * 2 + lane % 2;
  float sum[Tile::side][Tile::side] = {};
  block::wait_for_copies();
  __syncthreads();
#pragma unroll 2
  for (int v = group; v < p.vectors; v += Tile::groups) {
    V left[Tile::side], right[Tile::side];
#pragma unroll
    for (int i = 0; i < Tile::side; ++i) {
      left[i] = a[(row + i * Tile::row_lanes) * p.pitch + v];
      right[i] = b[(col + i * Tile::col_lanes) * p.pitch + v];
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < Tile::side; ++i) {
#pragma unroll
        for (int j = 0; j < Tile::side; ++j) sum[i][j] += left[i].v[k] * right[j].v[k];
      }
    }
  }
  __syncthreads();
  float* const sums = reinterpret_cast<float*>(pool);  // [group][row][col]
#pragma unroll
  for (int i = 0; i < Tile::side; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::side; ++j) {
      sums[(group * Tile::rows + row + i * Tile::row_lanes) * Tile::sums_pitch + col + j * Tile::col_lanes] = sum[i][j];
    }
  }
  __syncthreads();
  store_totals(p, sums, first_row, first_col);
}

// Whether this kernel is the fastest. Fewer tiles than multiprocessors leave some idle, and products of more than 2^28
// multiplications have not been compared.
inline bool is_short(const Gemm& g) {
  const auto in_vectors = [](const Matrix& m, int64_t side_stride, int64_t inner_stride) {
    return inner_stride == 1 && side_stride % 4 == 0 && reinterpret_cast<uintptr_t>(m.data) % 16 == 0;
  };
  const int64_t tiles = ceil_div(g.rows, int64_t(ShortTile::rows)) * ceil_div(g.cols, int64_t(ShortTile::cols));
  return g.dtype == DType::float32 && g.inner > 0 && g.inner % 4 == 0 && g.inner <= 4 * ShortTile::most_vectors &&
         in_vectors(g.a, g.a.row_stride, g.a.col_stride) && in_vectors(g.b, g.b.col_stride, g.b.row_stride) &&
         tiles >= 128 && g.rows * g.cols <= (int64_t(1) << 28) / g.inner;
}

inline void multiply_short(const Gemm& g, const void* bias, Context& context) {
  using Tile = ShortTile;
  const int vectors = int(g.inner / 4), pitch = vectors | 1;
  const ShortProduct p{static_cast<const float*>(g.a.data),
                       static_cast<const float*>(g.b.data),
                       static_cast<const float*>(bias),
                       static_cast<float*>(g.c),
                       g.a.row_stride,
                       g.b.col_stride,
                       g.rows,
                       g.cols,
                       ceil_div(g.cols, int64_t(Tile::cols)),
                       vectors,
                       pitch};
  const int64_t blocks = ceil_div(g.rows, int64_t(Tile::rows)) * p.col_tiles;
  const int bytes =
      max((Tile::rows + Tile::cols) * pitch * 16, Tile::groups * Tile::rows * Tile::sums_pitch * int(sizeof(float)));
  short_inner_kernel<<<unsigned(blocks), Tile::threads, size_t(bytes), cudaStream_t(context.stream)>>>(p);
  check_launch("linear");
}

}  // namespace tp::linear
