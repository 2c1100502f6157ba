// The main loop of a matrix product on the CUDA cores. A block computes a tile of rows x cols sums, slab by slab of the
// inner dimension. A slab of both factors is in shared memory, as [slab][rows] and [slab][cols], and is multiplied
// while the next slabs are being copied.
//
// A thread keeps row_side x col_side sums in registers, and reads row_side + col_side values, four neighbours at a
// time, for row_side * col_side products. The speed is limited by how many cycles shared memory takes for these reads:
// the 32 reads of 16 bytes of a warp take two cycles instead of four if neighbouring lanes read the same address. So a
// warp is arranged as 8 x 4 threads: lanes that differ in their lowest bit have the same rows, and lanes that differ in
// the next bit have the same columns.
//
// If the tile is small, several groups of threads compute all of it, each from its own part of every slab; their sums
// are added up at the end, in the order of the groups.
#pragma once
#include "block/copies.cuh"
#include "block/load_store.cuh"
#include "core/dtype.h"

namespace tp::block {

// `residents` is how many blocks should fit on a multiprocessor, which limits the registers. `unrolled` is for how many
// elements of the inner dimension the products are unrolled, as far as the instruction cache allows.
template <int rows_, int cols_, int row_side_, int col_side_, int slab_, int stages_, int residents_, int unrolled_,
          int groups_ = 1, int pad = 0>
struct FmaTile {
  static constexpr int rows = rows_, cols = cols_, row_side = row_side_, col_side = col_side_, slab = slab_,
                       stages = stages_, residents = residents_, unrolled = unrolled_, groups = groups_;
  static constexpr int row_quads = row_side / 4, col_quads = col_side / 4;
  static constexpr int row_lanes = rows / row_side, col_lanes = cols / col_side;
  static constexpr int group_threads = row_lanes * col_lanes, threads = group_threads * groups;
  static constexpr int row_pitch = rows + pad, col_pitch = cols + pad, stage_values = slab * (row_pitch + col_pitch);
  static_assert(row_side % 4 == 0 && col_side % 4 == 0 && row_lanes % 8 == 0 && col_lanes % 4 == 0 &&
                    slab % groups == 0,
                "whole quads and whole warps");

  TP_DEVICE static int group() { return groups == 1 ? 0 : int(threadIdx.x) / group_threads; }
  // The first row of quad i of this thread (row), and the first column (col).
  TP_DEVICE static int row(int i) {
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) % group_threads / 32;
    return (i * row_lanes + warp % (row_lanes / 8) * 8 + lane / 2 % 8) * 4;
  }
  TP_DEVICE static int col(int i) {
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) % group_threads / 32;
    return (i * col_lanes + warp / (row_lanes / 8) * 4 + lane / 16 * 2 + lane % 2) * 4;
  }
};

// Loads four neighbours from shared memory and converts them to accumulators.
template <class T, class A>
TP_DEVICE void load_quad(const T* from, A* to) {
  constexpr int width = sizeof(T) == 8 ? 2 : 4;
  using V = Vector<T, width>;
#pragma unroll
  for (int i = 0; i < 4; i += width) {
    const V v = *reinterpret_cast<const V*>(from + i);
#pragma unroll
    for (int k = 0; k < width; ++k) to[i + k] = A(v.v[k]);
  }
}

// What a thread multiplies for one element of the inner dimension.
template <class Tile, class A>
struct FmaFragment {
  A left[Tile::row_side], right[Tile::col_side];

  template <class T>
  TP_DEVICE void load(const T* rows, const T* cols) {
#pragma unroll
    for (int j = 0; j < Tile::col_quads; ++j) load_quad(cols + j * Tile::col_lanes * 4, right + j * 4);
#pragma unroll
    for (int i = 0; i < Tile::row_quads; ++i) load_quad(rows + i * Tile::row_lanes * 4, left + i * 4);
  }
  // Adds the products in serpentine order: each shares a factor with the previous one, which then need not be read from
  // the registers again.
  TP_DEVICE void add_to(A (&sum)[Tile::row_side][Tile::col_side]) const {
#pragma unroll
    for (int i = 0; i < Tile::row_side; ++i) {
#pragma unroll
      for (int n = 0; n < Tile::col_side; ++n) {
        const int j = i % 2 ? Tile::col_side - 1 - n : n;
        sum[i][j] += left[i] * right[j];
      }
    }
  }
};

// Adds the products of a slab. The next fragment is loaded while the current one is multiplied.
template <class Tile, class T, class A>
TP_DEVICE void add_slab(const T* stage, A (&sum)[Tile::row_side][Tile::col_side]) {
  constexpr int steps = Tile::slab / Tile::groups, unrolled = min(steps, Tile::unrolled);
  static_assert(unrolled % 2 == 0 && steps % unrolled == 0, "the fragments take turns");
  const T* rows = stage + Tile::group() * steps * Tile::row_pitch + Tile::row(0);
  const T* cols = stage + Tile::slab * Tile::row_pitch + Tile::group() * steps * Tile::col_pitch + Tile::col(0);
  FmaFragment<Tile, A> fragments[2];
  fragments[0].load(rows, cols);
#pragma unroll 1
  for (int first = 0; first < steps; first += unrolled) {
#pragma unroll
    for (int k = 0; k < unrolled; ++k) {
      if (k + 1 < unrolled || first + unrolled < steps) {
        fragments[(k + 1) % 2].load(rows + (k + 1) * Tile::row_pitch, cols + (k + 1) * Tile::col_pitch);
      }
      fragments[k % 2].add_to(sum);
    }
    rows += unrolled * Tile::row_pitch;
    cols += unrolled * Tile::col_pitch;
  }
}

// Calls multiply(stage) for each of `slabs` slabs, while the next ones, which load(stage) starts to copy, arrive.
template <class Tile, class T, class Load, class Multiply>
TP_DEVICE void for_slabs(int slabs, T* stages, const Load& load, const Multiply& multiply) {
#pragma unroll 1
  for (int i = 0; i < Tile::stages - 1; ++i) {
    if (i < slabs) load(stages + i * Tile::stage_values);
    commit_copies();
  }
  int stage = 0;
#pragma unroll 1
  for (int i = 0; i < slabs; ++i) {
    wait_for_groups<Tile::stages - 2>();
    __syncthreads();
    const int free = stage == 0 ? Tile::stages - 1 : stage - 1;
    if (i + Tile::stages - 1 < slabs) load(stages + free * Tile::stage_values);
    commit_copies();
    multiply(stages + stage * Tile::stage_values);
    stage = stage + 1 == Tile::stages ? 0 : stage + 1;
  }
  wait_for_groups<0>();
}

// The number of values of shared memory that store_sums() needs to add up the groups.
template <class Tile>
constexpr int pool_values() {
  return Tile::groups == 1 ? 0 : Tile::rows * Tile::cols * Tile::groups;
}

// Calls store(row, col, values) for four neighbours in a row of the tile at a time. `pool` is the memory that held the
// slabs.
template <class Tile, class A, class Store>
TP_DEVICE void store_sums(A* pool, const A (&sum)[Tile::row_side][Tile::col_side], const Store& store) {
  constexpr int quads = Tile::row_side * Tile::col_quads;
  if constexpr (Tile::groups == 1) {
#pragma unroll
    for (int q = 0; q < quads; ++q) {
      const int i = q / Tile::col_quads, j = q % Tile::col_quads;
      store(Tile::row(i / 4) + i % 4, Tile::col(j), sum[i] + j * 4);
    }
  } else {
    using V = Vector<A, 4>;
    V* const all = reinterpret_cast<V*>(pool);  // [group][quad][thread]
    const int thread = int(threadIdx.x) % Tile::group_threads;
    __syncthreads();
#pragma unroll
    for (int q = 0; q < quads; ++q) {
      const A* const from = sum[q / Tile::col_quads] + q % Tile::col_quads * 4;
      all[(Tile::group() * quads + q) * Tile::group_threads + thread] = {{from[0], from[1], from[2], from[3]}};
    }
    __syncthreads();
    static_assert(quads % Tile::groups == 0, "each group stores its share of the quads");
#pragma unroll
    for (int n = 0; n < quads / Tile::groups; ++n) {
      const int q = Tile::group() * (quads / Tile::groups) + n, i = q / Tile::col_quads, j = q % Tile::col_quads;
      V total = all[q * Tile::group_threads + thread];
#pragma unroll
      for (int g = 1; g < Tile::groups; ++g) {
        const V more = all[(g * quads + q) * Tile::group_threads + thread];
#pragma unroll
        for (int k = 0; k < 4; ++k) total.v[k] += more.v[k];
      }
      store(Tile::row(i / 4) + i % 4, Tile::col(j), total.v);
    }
  }
}

}  // namespace tp::block
