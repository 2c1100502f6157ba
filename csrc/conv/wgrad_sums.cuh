// What the kernels of wgrad_wgmma.cuh do with the sums of a tile: a block that has all of them writes dw, and so do the
// blocks of a cluster, which add them up through shared memory. The order of additions depends only on the sizes and on
// the kind of device. wgrad_slices.cuh is for sums of more blocks.
#pragma once
#include "block/cluster.cuh"
#include "conv/wgrad_units.cuh"

namespace tp::conv {

// The sums of a tile in shared memory. Rows are apart so that eight of them can be written without bank conflicts.
template <class Tile>
struct UnitSums {
  static constexpr int maps = Tile::blocks * 64, columns = Tile::units * Tile::channels, pitch = columns + 8;
  static constexpr int bytes = maps * pitch * int(sizeof(float));
};

// Writes the sums of a warpgroup, its part of the tile, to shared memory.
template <class Tile>
TP_DEVICE void write_sums(float* pool, int first_block, int first_unit, const UnitTileSums<Tile>& sum) {
  const int thread = int(threadIdx.x) % block::warpgroup, lane = thread % 32;
#pragma unroll
  for (int i = 0; i < Tile::blocks_each * 2; ++i) {
    const int map = (first_block + i / 2) * 64 + i % 2 * 8 + thread / 32 * 16 + lane / 4;
    float* const row = pool + map * UnitSums<Tile>::pitch + first_unit * Tile::channels + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < Tile::units_each * Tile::channels / 8; ++j) {
      *reinterpret_cast<float2*>(row + j * 8) = {sum[i / 2][j * 4 + i % 2 * 2], sum[i / 2][j * 4 + i % 2 * 2 + 1]};
    }
  }
}

// Element i of dw from the products that exist. Slabs that extend beyond dy add others, which are zero unless an
// element of x is infinite or NaN. The loops are not unrolled because that would cost the usual path registers.
template <class T>
TP_DEVICE float existing_sum(const Elements<T>& e, int64_t i) {
  int64_t q = i, p = divide(q, e.cols.kernel), channel = divide(p, e.rows.kernel), map = divide(channel, e.channels);
  channel += map / e.maps * e.channels;
  float sum = 0;
#pragma unroll 1
  for (int64_t image = 0; image < e.n && sum == sum; ++image) {  // a sum that has become NaN remains NaN
#pragma unroll 1
    for (int64_t h = 0; h < e.rows.out; ++h) {
#pragma unroll 1
      for (int64_t w = 0; w < e.cols.out; ++w) {
        const int64_t row = e.rows.source(h, p), col = e.cols.source(w, q);
        const bool inside = row >= 0 && row < e.rows.in && col >= 0 && col < e.cols.in;
        sum += float(e.y[e.y_at(image, map, h, w)]) * (inside ? float(e.x[e.x_at(image, channel, row, col)]) : 0.0f);
      }
    }
  }
  return sum;
}

// The rows of dw that a block writes: those of some maps of its tile. Each has all taps of some channels.
template <class Tile, class T>
struct FilterRows {
  const WgradWgmma<T>& work;
  int first, last, count;  // maps of the tile; elements per map
  T* dw;                   // that of map 0
  int64_t next;            // from one map to the next
  bool aligned;            // whether copies can store them

  TP_DEVICE FilterRows(const WgradWgmma<T>& work, const UnitShare& share, int first, int last)
      : work(work), first(first), last(min(last, int(work.e.maps) - share.map)), next(work.e.channels * work.taps) {
    const int64_t channel = share.unit / work.taps * Tile::channels;
    count = int(min(work.e.channels - channel, int64_t(UnitSums<Tile>::columns / work.taps))) * work.taps;
    dw = work.e.weight + (share.group * work.e.maps + share.map) * next + channel * work.taps;
    aligned = work.e.channels % 8 == 0 && reinterpret_cast<uintptr_t>(work.e.weight) % 16 == 0;
  }
  // Computes elements that are not finite again, then stores the rows, which lie `pitch` elements apart in shared
  // memory. The multiplying warps call it.
  TP_DEVICE void store(T* rows, int pitch, bool odd) const {
    if (block::any_of_warps(1, Tile::warps, odd && work.slab.is_ragged)) {
#pragma unroll 1
      for (int i = int(threadIdx.x); i < (last - first) * count; i += Tile::warps * 32) {
        const int map = first + i / count, at = i % count;
        T& element = rows[map * pitch + at];
        if (!is_finite(float(element))) element = T(existing_sum(work.e, dw + map * next + at - work.e.weight));
      }
    }
    block::publish_shared();
    block::sync_warps(1, Tile::warps);
    if (aligned) {
      const int map = first + int(threadIdx.x);
      if (map < last) block::store_bytes(rows + map * pitch, count * int(sizeof(T)), dw + map * next);
      block::commit_stores();
      block::wait_for_stores();
      return;
    }
#pragma unroll 1
    for (int map = first + int(threadIdx.x) / 32; map < last; map += Tile::warps) {
#pragma unroll 1
      for (int i = int(threadIdx.x) % 32; i < count; i += 32) dw[map * next + i] = rows[map * pitch + i];
    }
  }
};

// Stores the tile of a block that has all its sums. The warpgroups write them to shared memory, in the order of dw: all
// taps of a channel follow each other.
template <class Tile, class T>
TP_DEVICE void store_filters(const WgradWgmma<T>& work, const UnitShare& share, uint16_t* pool, int first_block,
                             int first_unit, const UnitTileSums<Tile>& sum) {
  constexpr int pitch = UnitSums<Tile>::pitch, octets = Tile::channels / 8;  // of a unit
  const int thread = int(threadIdx.x) % block::warpgroup, lane = thread % 32;
  const int per_channel = work.taps, per_unit = work.taps == 1 ? Tile::channels : 1;
  float zero = 0;  // becomes NaN
#pragma unroll
  for (int i = 0; i < Tile::blocks_each * 2; ++i) {
    const int map = (first_block + i / 2) * 64 + i % 2 * 8 + thread / 32 * 16 + lane / 4;
    uint16_t* const row = pool + map * pitch + lane % 4 * 2 * per_channel + first_unit * per_unit;
#pragma unroll
    for (int j = 0; j < Tile::units_each * octets; ++j) {
      uint16_t* const to = row + j % octets * 8 * per_channel + j / octets * per_unit;
      const float a = sum[i / 2][j * 4 + i % 2 * 2], b = sum[i / 2][j * 4 + i % 2 * 2 + 1];
      const unsigned pair = block::half_pair<T>(a, b);
      to[0] = uint16_t(pair), to[per_channel] = uint16_t(pair >> 16);
      if (work.slab.is_ragged) zero += a * 0.0f + b * 0.0f;
    }
  }
  FilterRows<Tile, T>(work, share, 0, UnitSums<Tile>::maps).store(reinterpret_cast<T*>(pool), pitch, zero != 0);
}

// Adds up the sums of a cluster of up to `most` blocks, and stores them: each block those of some maps. A thread has
// the sums of a map and of four neighbouring channels, under all units of the tile.
template <int most, class Tile, class T>
TP_DEVICE void add_up_maps(const WgradWgmma<T>& work, const UnitShare& share, float* pool) {
  using Sums = UnitSums<Tile>;
  constexpr int units = Tile::units, across = Tile::channels / 4, per_warp = 32 / across;
  const int cluster = work.slices, rank = share.slice, each = ceil_div(Sums::maps, cluster), first = rank * each,
            quad = int(threadIdx.x) % across;
  const FilterRows<Tile, T> rows(work, share, first, min(first + each, Sums::maps));
  bool odd = false;
#pragma unroll 1
  for (int base = first + int(threadIdx.x) / 32 * per_warp; base < rows.last; base += Tile::warps * per_warp) {
    const int map = base + int(threadIdx.x) % 32 / across;
    const bool exists = map < rows.last;
    float* const row = pool + map * Sums::pitch;
    float4 sums[units];
#pragma unroll
    for (int u = 0; u < units; ++u) {
      const float* const mine = row + u * Tile::channels + quad * 4;
      float4 parts[most] = {*reinterpret_cast<const float4*>(mine)};
#pragma unroll
      for (int k = 1; k < most; ++k) {
        // Each block begins with the next one, so that not all read from the same one.
        const int from = rank + k < cluster ? rank + k : rank + k - cluster;
        if (k < cluster && exists) parts[k] = block::cluster_load(mine, from);
      }
      sums[u] = parts[0];
#pragma unroll
      for (int k = 1; k < most; ++k) {
        const float4 more = parts[k];
        sums[u] = {sums[u].x + more.x, sums[u].y + more.y, sums[u].z + more.z, sums[u].w + more.w};
      }
    }
    // Replace the sums of these maps, which no other warp reads, in the order of dw.
    __syncwarp();
    if (!exists) continue;
    uint2* const to = reinterpret_cast<uint2*>(row);
    const auto sum = [&](int i) {  // of the four channels, one after another
      const float4 four = sums[i % units];
      return i < units ? four.x : i < units * 2 ? four.y : i < units * 3 ? four.z : four.w;
    };
#pragma unroll
    for (int u = 0; u < units; ++u) {
      const float4 four = sums[u];
      odd = odd || !is_finite(four.x + four.y + four.z + four.w);
      if (work.taps == 1) {
        to[u * across + quad] = {block::half_pair<T>(four.x, four.y), block::half_pair<T>(four.z, four.w)};
      } else {
        to[quad * units + u] = {block::half_pair<T>(sum(u * 4), sum(u * 4 + 1)),
                                block::half_pair<T>(sum(u * 4 + 2), sum(u * 4 + 3))};
      }
    }
  }
  __syncwarp();
  block::cluster_arrive();
  rows.store(reinterpret_cast<T*>(pool), Sums::pitch * 2, odd);
  block::cluster_wait();  // until the others have read the sums of this block
}

// The multiplying warps of all blocks of a cluster call it.
template <class Tile, class T>
TP_DEVICE void add_up_cluster(const WgradWgmma<T>& work, const UnitShare& share, float* pool) {
  block::cluster_barrier();
  if (work.slices == 2) {
    add_up_maps<2, Tile>(work, share, pool);
  } else if (work.slices <= 4) {
    add_up_maps<4, Tile>(work, share, pool);
  } else {
    add_up_maps<8, Tile>(work, share, pool);
  }
}

}  // namespace tp::conv
