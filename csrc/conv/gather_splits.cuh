// Long sums of small problems of fprop and dgrad (gather_wgmma.cuh). If there are fewer tiles than multiprocessors, the
// blocks of a cluster compute the same tile, each for some channels of the source. Then they add up their sums, each
// block for some maps, through shared memory, and store them. The order of additions depends only on the sizes and on
// the kind of device.
#pragma once
#include "block/cluster.cuh"
#include "conv/patches.cuh"

namespace tp::conv {

// The most blocks of a cluster.
constexpr int most_splits = 8;

// The sums of a block in shared memory: four per multiplying thread, then the next four of each.
template <class Tile>
struct SplitSums {
  static_assert(!Tile::pixels_are_columns && Tile::groups == 1 && Tile::blocks == 1);
  static constexpr int threads = Tile::warps * 32, octets = Tile::maps / 8, bytes = threads * octets * 16;
};

// Where the target has sum i of the four sums of this thread in eight maps, in the order of the registers of a product:
// two neighbouring maps of one position, and of the position eight further on.
struct SplitTarget {
  PhasePixel pixel;
  int64_t map;
  bool exists;
};

template <class T>
TP_DEVICE SplitTarget split_target(const GatherWgmma<T>& work, const WgmmaShare& share, int octet, int i) {
  const int thread = int(threadIdx.x), position = thread / 32 * 16 + thread % 32 / 4 + i / 2 * 8,
            row = position / work.shape.pitch, col = position % work.shape.pitch;
  const int64_t map = share.map + octet * 8 + thread % 4 * 2 + i % 2;
  const bool exists = row < share.tile_rows && col < share.tile_cols && map < work.g.maps;
  return {pixel_of_tile(work, share, row, col), map, exists};
}

template <class T>
TP_DEVICE T& element(const GatherWgmma<T>& work, const WgmmaShare& share, const SplitTarget& at) {
  const Gather<T>& g = work.g;
  return g.target[g.target_strides.at(at.pixel.image, share.group * g.maps + at.map, share.rows.target(at.pixel.h),
                                      share.cols.target(at.pixel.w))];
}

// Adds up the sums of up to `most` blocks, for the maps of this block.
template <int most, class T, class Tile, Pass pass>
TP_DEVICE void add_up_octets(const GatherWgmma<T>& work, const WgmmaShare& share, const float4* pool) {
  using Sums = SplitSums<Tile>;
  constexpr int at_once = 8 / most;  // to have eight loads at once
  const int splits = work.splits, rank = int(blockIdx.x) % splits, begin = rank * Sums::octets / splits,
            end = (rank + 1) * Sums::octets / splits;
  bool odd = false;
#pragma unroll 1
  for (int first = begin; first < end; first += at_once) {
    float4 parts[at_once][most];
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
#pragma unroll
      for (int k = 0; k < most; ++k) {
        // Each block begins with itself, so that not all read from the same one.
        const int from = rank + k < splits ? rank + k : rank + k - splits;
        parts[u][k] = {};
        if (first + u < end && k < splits) {
          parts[u][k] = block::cluster_load(pool + (first + u) * Sums::threads + threadIdx.x, from);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
      if (first + u >= end) break;
      float4 total = parts[u][0];
#pragma unroll
      for (int k = 1; k < most; ++k) {
        const float4 more = parts[u][k];
        total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
      }
      const float sums[] = {total.x, total.y, total.z, total.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const SplitTarget at = split_target(work, share, first + u, i);
        if (!at.exists) continue;
        const float shift = work.g.bias ? float(work.g.bias[share.group * work.g.maps + at.map]) : 0.0f;
        element(work, share, at) = T(sums[i] + shift);
        odd = odd || !is_finite(sums[i]);
      }
    }
  }
  // An infinite or NaN weight, times the zero beyond an edge, is a product that does not exist in dgrad. So a sum that
  // is not finite is computed again, from the products that exist. The loop is not unrolled because that would cost the
  // usual path registers.
  if constexpr (pass == Pass::dgrad) {
    if (!odd) return;
#pragma unroll 1
    for (int i = begin * 4; i < end * 4; ++i) {
      const SplitTarget at = split_target(work, share, i / 4, i % 4);
      if (!at.exists || is_finite(float(element(work, share, at)))) continue;
      element(work, share, at) =
          T(work.g.plain_sum(share.rows, share.cols, at.pixel.image, share.group, at.map, at.pixel.h, at.pixel.w));
    }
  }
}

// The multiplying warps of all blocks of a cluster call it.
template <class T, class Tile, Pass pass>
TP_DEVICE void add_up_splits(const GatherWgmma<T>& work, const WgmmaShare& share,
                             const float (&sum)[Tile::blocks][Tile::sums], float4* pool) {
  using Sums = SplitSums<Tile>;
  block::sync_warps(1, Tile::warps);  // until all products have read the stages, which the sums replace
#pragma unroll
  for (int j = 0; j < Sums::octets; ++j) {
    pool[j * Sums::threads + threadIdx.x] = {sum[0][j * 4], sum[0][j * 4 + 1], sum[0][j * 4 + 2], sum[0][j * 4 + 3]};
  }
  block::cluster_barrier();
  if (work.splits == 2) {
    add_up_octets<2, T, Tile, pass>(work, share, pool);
  } else if (work.splits <= 4) {
    add_up_octets<4, T, Tile, pass>(work, share, pool);
  } else {
    add_up_octets<8, T, Tile, pass>(work, share, pool);
  }
  __syncwarp();
  block::cluster_barrier();  // until the others have read the sums of this block
}

}  // namespace tp::conv
