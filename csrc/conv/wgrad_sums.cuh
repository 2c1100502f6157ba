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
  // With what a block of a cluster adds up.
  static int bytes_of(int cluster) { return bytes + (cluster > 1 ? ceil_div(maps, cluster) * pitch * 2 : 0); }
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

  TP_DEVICE FilterRows(const WgradWgmma<T>& work, const UnitShare& share, int first, int last)
      : work(work), first(first), last(min(last, int(work.e.maps) - share.map)), next(work.e.channels * work.taps) {
    const int64_t channel = share.unit / work.taps * Tile::channels;
    count = int(min(work.e.channels - channel, int64_t(UnitSums<Tile>::columns / work.taps))) * work.taps;
    dw = work.e.weight + (share.group * work.e.maps + share.map) * next + channel * work.taps;
  }
  // Computes elements that are not finite again, then stores the rows. at(map, i) is where shared memory has element i
  // of a map; if copies can store them, send() starts these, which run until wait_for_stores(). The multiplying warps
  // call it.
  template <class At, class Send>
  TP_DEVICE void store(T* rows, bool odd, const At& at, const Send& send) const {
    if (block::any_of_warps(1, Tile::warps, odd && work.slab.is_ragged)) {
#pragma unroll 1
      for (int i = int(threadIdx.x); i < (last - first) * count; i += Tile::warps * 32) {
        const int map = first + i / count;
        T& element = rows[at(map, i % count)];
        if (!is_finite(float(element))) {
          element = T(existing_sum(work.e, dw + map * next + i % count - work.e.weight));
        }
      }
    }
    block::publish_shared();
    block::sync_warps(1, Tile::warps);
    if (stores_aligned(work.e)) {
      send();
      return block::commit_stores();
    }
#pragma unroll 1
    for (int map = first + int(threadIdx.x) / 32; map < last; map += Tile::warps) {
#pragma unroll 1
      for (int i = int(threadIdx.x) % 32; i < count; i += 32) dw[map * next + i] = rows[at(map, i)];
    }
  }
  // The same of rows that lie `pitch` elements apart.
  TP_DEVICE void store(T* rows, int pitch, bool odd) const {
    store(
        rows, odd, [&](int map, int i) { return map * pitch + i; },
        [&] {
          const int map = first + int(threadIdx.x);
          if (map < last) block::store_bytes(rows + map * pitch, count * int(sizeof(T)), dw + map * next);
        });
  }
};

// The rounded tile in shared memory, in the order of dw: as rows that are some elements apart, or, with patches, as
// boxes of rows.
template <class Tile>
struct FilterImage {
  static constexpr int maps = UnitSums<Tile>::maps, columns = UnitSums<Tile>::columns, bytes = (columns + 8) * maps * 2;

  TP_DEVICE static int at(int map, int i) {
    if constexpr (Tile::has_patches) {
      constexpr int width = Tile::box_columns;
      return i / width * (width * maps) + map * width + i % width;
    } else {
      return map * UnitSums<Tile>::pitch + i;
    }
  }
};

// Stores the tile of a block that has all its sums, by way of an image.
template <class Tile, class T>
TP_DEVICE void store_filters(const WgradWgmma<T>& work, const UnitShare& share, unsigned char* pool, int first_block,
                             int first_unit, const UnitTileSums<Tile>& sum) {
  using Image = FilterImage<Tile>;
  constexpr int octets = Tile::channels / 8;  // of a unit
  uint16_t* const image = reinterpret_cast<uint16_t*>(pool);
  const int thread = int(threadIdx.x) % block::warpgroup, lane = thread % 32;
  // The distances in dw.
  const int per_channel = Tile::has_patches ? Tile::units : work.taps, per_unit = per_channel == 1 ? Tile::channels : 1;
  float zero = 0;  // becomes NaN
#pragma unroll
  for (int i = 0; i < Tile::blocks_each * 2; ++i) {
    const int map = (first_block + i / 2) * 64 + i % 2 * 8 + thread / 32 * 16 + lane / 4;
    uint16_t* const row = image + Image::at(map, 0) + lane % 4 * 2 * per_channel + first_unit * per_unit;
#pragma unroll
    for (int j = 0; j < Tile::units_each * octets; ++j) {
      uint16_t* const to = row + Image::at(0, j % octets * 8 * per_channel) + j / octets * per_unit;
      const float a = sum[i / 2][j * 4 + i % 2 * 2], b = sum[i / 2][j * 4 + i % 2 * 2 + 1];
      const unsigned pair = block::half_pair<T>(a, b);
      to[0] = uint16_t(pair), to[per_channel] = uint16_t(pair >> 16);
      if (work.slab.is_ragged) zero += a * 0.0f + b * 0.0f;
    }
  }
  T* const data = reinterpret_cast<T*>(image);
  const FilterRows<Tile, T> rows(work, share, 0, Image::maps);
  if constexpr (Tile::has_patches) {
    rows.store(data, zero != 0, Image::at, [&] {
      const int i = int(threadIdx.x) * Tile::box_columns;
      if (i >= rows.count) return;
      block::store_planes(work.dw, share.group, share.map, share.unit * Tile::channels + i,
                          block::shared_address(data + Image::at(0, i)));
    });
  } else {
    rows.store(data, UnitSums<Tile>::pitch, zero != 0);
  }
}

// Adds up the sums of a cluster of up to `most` blocks, and stores them: each block those of some maps, by way of rows
// behind its sums. A thread adds up four neighbouring channels of a map at a time.
template <int most, class Tile, class T>
TP_DEVICE void add_up_maps(const WgradWgmma<T>& work, const UnitShare& share, float* pool) {
  using Sums = UnitSums<Tile>;
  constexpr int across = Tile::channels / 4, per_warp = 32 / across;
  const int cluster = work.slices, rank = share.slice, each = ceil_div(Sums::maps, cluster), first = rank * each,
            quad = int(threadIdx.x) % across;
  const FilterRows<Tile, T> rows(work, share, first, min(first + each, Sums::maps));
  T* const rounded = reinterpret_cast<T*>(pool + Sums::maps * Sums::pitch) - first * Sums::pitch;
  bool odd = false;
#pragma unroll 1
  for (int base = first + int(threadIdx.x) / 32 * per_warp; base < rows.last; base += Tile::warps * per_warp) {
    const int map = base + int(threadIdx.x) % 32 / across;
    if (map >= rows.last) continue;
    const float* const row = pool + map * Sums::pitch + quad * 4;
#pragma unroll
    for (int u = 0; u < Tile::units; ++u) {
      const float* const mine = row + u * Tile::channels;
      float4 parts[most] = {*reinterpret_cast<const float4*>(mine)};
#pragma unroll
      for (int k = 1; k < most; ++k) {
        // Each block begins with the next one, so that not all read from the same one.
        const int from = rank + k < cluster ? rank + k : rank + k - cluster;
        if (k < cluster) parts[k] = block::cluster_load(mine, from);
      }
      float4 sum = parts[0];
#pragma unroll
      for (int k = 1; k < most; ++k) {
        const float4 more = parts[k];
        sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
      }
      odd = odd || !is_finite(sum.x + sum.y + sum.z + sum.w);
      const unsigned low = block::half_pair<T>(sum.x, sum.y), high = block::half_pair<T>(sum.z, sum.w);
      T* const to = rounded + map * Sums::pitch;
      if (work.taps == 1) {
        *reinterpret_cast<uint2*>(to + u * Tile::channels + quad * 4) = {low, high};
      } else {
        uint16_t* const taps = reinterpret_cast<uint16_t*>(to) + quad * 4 * Tile::units + u;
        taps[0] = uint16_t(low), taps[Tile::units] = uint16_t(low >> 16);
        taps[2 * Tile::units] = uint16_t(high), taps[3 * Tile::units] = uint16_t(high >> 16);
      }
    }
  }
  __syncwarp();
  block::cluster_arrive();
  rows.store(rounded, Sums::pitch, odd);
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
