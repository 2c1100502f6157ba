// Long sums of small problems of fprop and dgrad (gather_wgmma.cuh). If there are fewer tiles than multiprocessors, the
// blocks of a cluster compute the same tile, each for some channels of the source. Then each block adds up one part of
// the tile, which the others copy to its shared memory, and stores it. The order of additions depends only on the sizes
// and on the kind of device.
#pragma once
#include "block/cluster.cuh"
#include "conv/patches.cuh"

namespace tp::conv {

// The most blocks of a cluster.
constexpr int most_splits = 8;

// Shared memory of a block that has computed its sums: first all of them, a row of maps per position, then the rows of
// its part from each other block, then where the pixel of each row of its part begins in the target. Rows are four
// floats longer than the maps, so that the sums that a warp writes at once lie in different banks.
template <class Tile>
struct SplitSums {
  static constexpr int pitch = Tile::maps + 4, row_bytes = pitch * 4;
  int splits, rank;

  TP_HD static int bytes(int splits) {
    const int rows = ceil_div(Tile::positions, splits);
    return (Tile::positions + (splits - 1) * rows) * row_bytes + rows * int(sizeof(int64_t));
  }
  TP_DEVICE explicit SplitSums(int splits) : splits(splits), rank(int(blockIdx.x)) {}
  // The first position of the part of a block.
  TP_DEVICE int first(int block) const { return block * Tile::positions / splits; }
  TP_DEVICE int rows(int block) const { return first(block + 1) - first(block); }
  // The block that is `steps` further on in the cluster, and the row where its contribution begins.
  TP_DEVICE int other(int steps) const { return rank + steps < splits ? rank + steps : rank + steps - splits; }
  TP_DEVICE int row_of_other(int steps) const {
    return Tile::positions + (steps - 1) * ceil_div(Tile::positions, splits);
  }
};

// Computes again, from the products that exist, those sums of this block's part that are not finite. An infinite or NaN
// weight, times the zero beyond an edge, is a product that does not exist in dgrad.
template <class T, class Tile>
TP_DEVICE void store_plain_part(const GatherWgmma<T>& work, const WgmmaShare& share, const SplitSums<Tile>& sums) {
  const Gather<T>& g = work.g;
  const int first = sums.first(sums.rank), count = sums.rows(sums.rank) * Tile::maps;
#pragma unroll 1
  for (int i = int(threadIdx.x); i < count; i += Tile::warps * 32) {
    const int position = first + i / Tile::maps, row = position / work.shape.pitch, col = position % work.shape.pitch;
    const int64_t map = share.map + i % Tile::maps;
    if (row >= share.tile_rows || col >= share.tile_cols || map >= g.maps) continue;
    const PhasePixel at = pixel_of_tile(work, share, row, col);
    T& target = g.target[g.target_strides.at(at.image, share.group * g.maps + map, share.rows.target(at.h),
                                             share.cols.target(at.w))];
    if (is_finite(float(target))) continue;
    target = T(g.plain_sum(share.rows, share.cols, at.image, share.group, map, at.h, at.w));
  }
}

// Finds where the target has the first map of each pixel of this block's part, or -1 if there is no such pixel.
template <class T, class Tile>
TP_DEVICE void find_part(const GatherWgmma<T>& work, const WgmmaShare& share, const SplitSums<Tile>& sums,
                         int64_t* offsets) {
  const int i = int(threadIdx.x), position = sums.first(sums.rank) + i;
  if (i >= sums.rows(sums.rank)) return;
  const int row = position / work.shape.pitch, col = position - row * work.shape.pitch;
  const PhasePixel at = pixel_of_tile(work, share, row, col);
  const int64_t offset = work.g.target_strides.at(at.image, share.group * work.g.maps + share.map,
                                                  share.rows.target(at.h), share.cols.target(at.w));
  offsets[i] = row < share.tile_rows && col < share.tile_cols ? offset : -1;
}

// Adds up this block's part, and stores it. Returns whether all sums are finite. Each thread computes the same four
// maps of its positions.
template <class T, class Tile>
TP_DEVICE bool store_part(const GatherWgmma<T>& work, const WgmmaShare& share, const SplitSums<Tile>& sums,
                          const float* pool, const int64_t* offsets) {
  constexpr int across = Tile::maps / 4, step = Tile::warps * 32 / across;
  const Gather<T>& g = work.g;
  const int quad = int(threadIdx.x) % across * 4, first = sums.first(sums.rank), rows = sums.rows(sums.rank);
  const int64_t channel = g.target_strides.channel;
  const int maps = int(min(g.maps - share.map - quad, int64_t(4)));
  float bias[4] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (g.bias && j < maps) bias[j] = float(g.bias[share.group * g.maps + share.map + quad + j]);
  }
  T* const target = g.target + quad * channel;
  const bool whole = work.stores_boxes && maps >= 4;  // aligned, and the maps are neighbours
  float zero = 0;                                     // becomes NaN
#pragma unroll 2
  for (int i = int(threadIdx.x) / across; i < rows; i += step) {
    const auto part = [&](int row) { return *reinterpret_cast<const float4*>(pool + row * sums.pitch + quad); };
    float4 total = part(first + i);
    for (int k = 1; k < sums.splits; ++k) {
      const float4 more = part(sums.row_of_other(k) + i);
      total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
    }
    if (offsets[i] < 0) continue;
    const float four[] = {total.x, total.y, total.z, total.w};
    T* const to = target + offsets[i];
#pragma unroll
    for (int j = 0; j < 4; ++j) zero += j < maps ? four[j] * 0.0f : 0.0f;
    if (whole) {
      *reinterpret_cast<uint2*>(to) = {block::half_pair<T>(four[0] + bias[0], four[1] + bias[1]),
                                       block::half_pair<T>(four[2] + bias[2], four[3] + bias[3])};
      continue;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j < maps) to[j * channel] = T(four[j] + bias[j]);
    }
  }
  return zero == 0;
}

// The multiplying warps of all blocks of a cluster call it. `received` is a barrier for this block's part.
template <class T, class Tile, Pass pass>
TP_DEVICE void add_up_splits(const GatherWgmma<T>& work, const WgmmaShare& share, const float (&sum)[Tile::sums],
                             unsigned char* stages, block::Barrier& received) {
  const SplitSums<Tile> sums(work.splits);
  const int thread = int(threadIdx.x);
  // All products of this block have read the stages, so that sums can replace them.
  block::sync_warps(1, Tile::warps);
  block::cluster_arrive();
  float* const pool = reinterpret_cast<float*>(stages);
  float* const mine = pool + thread % 4 * 2 * sums.pitch + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (int i = 0; i < Tile::sums; ++i) mine[(i / 4 * 8 + i % 2) * sums.pitch + i / 2 % 2 * 8] = sum[i];
  block::publish_shared();
  block::cluster_wait();  // until that is true of all blocks
  block::sync_warps(1, Tile::warps);
  // Copy to each other block its part.
  if (thread == 0) block::arrive_expecting(received, (sums.splits - 1) * sums.rows(sums.rank) * sums.row_bytes);
  if (thread > 0 && thread < sums.splits) {
    const int other = sums.other(thread), to = sums.row_of_other(sums.splits - thread);
    block::copy_to_block(block::shared_address(stages) + unsigned(to * sums.row_bytes), other,
                         block::shared_address(stages) + unsigned(sums.first(other) * sums.row_bytes),
                         sums.rows(other) * sums.row_bytes, received);
  }
  int64_t* const offsets = reinterpret_cast<int64_t*>(stages + sums.row_of_other(sums.splits) * sums.row_bytes);
  find_part(work, share, sums, offsets);
  __syncwarp();
  block::sync_warps(1, Tile::warps);
  received.wait(0);
  block::cluster_arrive();
  const bool finite = store_part(work, share, sums, pool, offsets);
  if constexpr (pass == Pass::dgrad) {
    if (block::any_of_warps(1, Tile::warps, !finite)) store_plain_part(work, share, sums);
  }
  __syncwarp();
  block::cluster_wait();  // until the others have received what this block has copied to them
}

}  // namespace tp::conv
