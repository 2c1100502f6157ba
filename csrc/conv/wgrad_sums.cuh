// What the kernels of wgrad_wgmma.cuh do with the sums of a tile. If few slices make up a tile, their blocks are a
// cluster, which adds them up through shared memory and writes dw. Otherwise each block stores its sums, and a second
// kernel adds them up. The order of additions depends only on the sizes and on the kind of device.
#pragma once
#include "block/cluster.cuh"
#include "block/slices.cuh"
#include "conv/wgrad_units.cuh"

namespace tp::conv {

// The sums of a tile in shared memory, and the part of dw that a block of a cluster computes from them. Rows are apart
// so that eight of them can be written without bank conflicts.
template <class Tile>
struct UnitSums {
  static constexpr int maps = Tile::blocks * 64, columns = Tile::units * block::row_elements, pitch = columns + 8;
  static constexpr int quads = columns / 4, bytes = maps * pitch * int(sizeof(float));
  // The maps that each block of a cluster takes.
  static TP_HD int maps_each(int cluster) { return ceil_div(maps, cluster); }
  static int bytes_with_dw(int cluster) { return bytes + maps_each(cluster) * columns * 2; }
};

// Writes the sums of a warpgroup, its part of the tile, to shared memory.
template <class Tile>
TP_DEVICE void write_sums(float* pool, int first_block, int first_unit,
                          const float (&sum)[Tile::blocks_each][Tile::units_each * 32]) {
  const int thread = int(threadIdx.x) % block::warpgroup, lane = thread % 32;
#pragma unroll
  for (int i = 0; i < Tile::blocks_each * 2; ++i) {
    const int map = (first_block + i / 2) * 64 + i % 2 * 8 + thread / 32 * 16 + lane / 4;
    float* const row = pool + map * UnitSums<Tile>::pitch + first_unit * block::row_elements + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < Tile::units_each * 8; ++j) {
      *reinterpret_cast<float2*>(row + j * 8) = {sum[i / 2][j * 4 + i % 2 * 2], sum[i / 2][j * 4 + i % 2 * 2 + 1]};
    }
  }
}

// Copies the tile to its slice, by one instruction per map. The multiplying warps call it.
template <class Tile, class T>
TP_DEVICE void store_sums(const WgradWgmma<T>& work, const UnitShare& share, const float* pool) {
  block::publish_shared();
  block::sync_warps(1, Tile::warps);
  const int row = int(threadIdx.x), bytes = share.units * block::row_elements * int(sizeof(float));
  static_assert(UnitSums<Tile>::maps <= Tile::warps * 32);
  if (row >= UnitSums<Tile>::maps || share.map + row >= work.e.maps) return;
  const int64_t at = (share.group * work.e.maps + share.map + row) * work.units + share.unit;
  float* const to = work.sums + share.slice * work.sums_per_slice() + at * block::row_elements;
  block::store_bytes(pool + row * UnitSums<Tile>::pitch, bytes, to);
  block::commit_stores();
  block::wait_for_stores();
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

// ---- adding up in a cluster

// Copies from shared memory to dw, by one warp, `width` elements at a time.
template <int width, class T>
TP_DEVICE void store_filter(const T* from, int count, T* to) {
  using V = block::Vector<T, width>;
#pragma unroll 1
  for (int i = int(threadIdx.x) % 32 * width; i < count; i += 32 * width) {
    *reinterpret_cast<V*>(to + i) = *reinterpret_cast<const V*>(from + i);
  }
}

// Adds up the sums of up to `most` blocks: this block those of some maps.
template <int most, class Tile, class T>
TP_DEVICE void add_up_maps(const WgradWgmma<T>& work, const UnitShare& share, const float* pool, T* staged) {
  using Sums = UnitSums<Tile>;
  constexpr int threads = Tile::warps * 32, at_once = 8 / most;  // quads per thread, to have eight loads at once
  const int cluster = work.slices, taps = work.taps, rank = share.slice, first_map = rank * Sums::maps_each(cluster),
            rows = min(min(Sums::maps_each(cluster), Sums::maps - first_map), int(work.e.maps) - share.map - first_map);
  bool odd = false;
#pragma unroll 1
  for (int first = int(threadIdx.x); first < rows * Sums::quads; first += threads * at_once) {
    float4 parts[at_once][most];
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
      const int i = first + u * threads, row = i / Sums::quads, column = i % Sums::quads * 4;
      const auto* const at = reinterpret_cast<const float4*>(pool + (first_map + row) * Sums::pitch + column);
      if (row < rows) parts[u][0] = *at;
#pragma unroll
      for (int k = 1; k < most; ++k) {
        // Each block begins with the next one, so that not all read from the same one.
        const int from = rank + k < cluster ? rank + k : rank + k - cluster;
        parts[u][k] = {};
        if (k < cluster && row < rows) parts[u][k] = block::cluster_load(at, from);
      }
    }
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
      const int i = first + u * threads, row = i / Sums::quads, column = i % Sums::quads * 4;
      if (row >= rows) break;
      float4 total = parts[u][0];
#pragma unroll
      for (int k = 1; k < most; ++k) {
        const float4 more = parts[u][k];
        total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
      }
      // In the order of dw.
      const int unit = column / block::row_elements, channel = column % block::row_elements;
      T* const to = staged + row * Sums::columns + (taps == 1 ? column : channel * taps + unit);
      to[0] = T(total.x), to[taps] = T(total.y), to[2 * taps] = T(total.z), to[3 * taps] = T(total.w);
      odd = odd || !is_finite(total.x + total.y + total.z + total.w);
    }
  }
  const int64_t map = share.group * work.e.maps + share.map + first_map, channel = share.unit / taps * 64;
  const int count = int(min(work.e.channels - channel, int64_t(Sums::columns / taps))) * taps;
  T* const dw = work.e.weight + (map * work.e.channels + channel) * taps;  // of the first map
  const int64_t next_map = work.e.channels * taps;
  if (block::any_of_warps(1, Tile::warps, odd && work.slab.is_ragged)) {
#pragma unroll 1
    for (int i = int(threadIdx.x); i < rows * Sums::columns; i += threads) {
      const int row = i / Sums::columns, at = i % Sums::columns;
      if (at >= count || is_finite(float(staged[i]))) continue;
      staged[i] = T(existing_sum(work.e, dw + row * next_map + at - work.e.weight));
    }
    block::sync_warps(1, Tile::warps);
  }
  const bool aligned = work.e.channels % 8 == 0 && reinterpret_cast<uintptr_t>(work.e.weight) % 16 == 0;
#pragma unroll 1
  for (int row = int(threadIdx.x) / 32; row < rows; row += Tile::warps) {
    T* const to = dw + row * next_map;
    const T* const from = staged + row * Sums::columns;
    aligned ? store_filter<8>(from, count, to) : store_filter<1>(from, count, to);
  }
}

// The multiplying warps of all blocks of a cluster call it.
template <class Tile, class T>
TP_DEVICE void add_up_cluster(const WgradWgmma<T>& work, const UnitShare& share, float* pool) {
  T* const staged = reinterpret_cast<T*>(pool + UnitSums<Tile>::maps * UnitSums<Tile>::pitch);
  if (work.slices == 1) {
    block::sync_warps(1, Tile::warps);
    return add_up_maps<1, Tile>(work, share, pool, staged);
  }
  block::cluster_barrier();
  if (work.slices == 2) {
    add_up_maps<2, Tile>(work, share, pool, staged);
  } else if (work.slices <= 4) {
    add_up_maps<4, Tile>(work, share, pool, staged);
  } else {
    add_up_maps<8, Tile>(work, share, pool, staged);
  }
  // Wait until the others have read the sums of this block.
  block::cluster_arrive();
  block::cluster_wait();
}

// ---- the second kernel

// A block adds up the sums of some channels of one map under all taps, which are contiguous in dw. Each of `lanes`
// threads adds up every lanes-th slice, for four neighbouring channels under one tap.
constexpr int sum_channels = 32, add_columns = 72, most_taps = 256;

// A thread loads `at_once` slices before it adds any, and a multiprocessor runs `together` blocks.
template <class T, int lanes, int at_once, int together>
__global__ void __launch_bounds__(lanes* add_columns, together) add_units(const __grid_constant__ WgradWgmma<T> work) {
  __shared__ float4 pool[lanes][add_columns];
  extern __shared__ float totals[];
  const int taps = work.taps, channels = int(work.e.channels), slices = work.slices;
  const int column = int(threadIdx.x) % add_columns, lane = int(threadIdx.x) / add_columns;
  const int blocks = ceil_div(channels, sum_channels), map = int(blockIdx.x) / blocks,
            channel = int(blockIdx.x) % blocks * sum_channels;
  const int64_t next = work.sums_per_slice();
  const float* const sums = work.sums + lane * next + channel % block::row_elements +
                            (int64_t(map) * work.units + channel / block::row_elements * taps) * block::row_elements;
  block::wait_for_launch_before();
  for (int first = 0; first < taps * sum_channels / 4; first += add_columns) {
    const int tap = (first + column) / (sum_channels / 4), offset = (first + column) % (sum_channels / 4) * 4;
    // Each lane adds up its slices.
    float4 total{};
    if (tap < taps) {
      const float* from = sums + tap * block::row_elements + offset;
      for (int slice = lane; slice < slices; slice += lanes * at_once) {
        float4 parts[at_once] = {};
#pragma unroll
        for (int k = 0; k < at_once; ++k, from += lanes * next) {
          if (slice + k * lanes < slices) parts[k] = *reinterpret_cast<const float4*>(from);
        }
#pragma unroll
        for (const float4& more : parts) {
          total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
        }
      }
    }
    pool[lane][column] = total;
    __syncthreads();
    // Add up the lanes, and put the sums in the order of dw.
    for (int i = int(threadIdx.x); i < add_columns * 4; i += lanes * add_columns) {
      const int index = first * 4 + i;
      float all = 0;
#pragma unroll
      for (int k = 0; k < lanes; ++k) all += reinterpret_cast<const float*>(pool[k])[i];
      if (index < taps * sum_channels) totals[index % sum_channels * taps + index / sum_channels] = all;
    }
    __syncthreads();
  }
  const int count = min(channels - channel, sum_channels) * taps;
  T* const out = work.e.weight + (int64_t(map) * channels + channel) * taps;
#pragma unroll 1
  for (int i = int(threadIdx.x); i < count; i += lanes * add_columns) {
    float total = totals[i];
    if (work.slab.is_ragged && !is_finite(total)) total = existing_sum(work.e, out + i - work.e.weight);
    out[i] = T(total);
  }
}

// The index in dw of sum i of a slice, if the filters have one tap; -1 for the channels that only pad the last unit.
struct IndexInRow {
  int64_t width, channels;
  TP_HD int64_t operator()(int64_t i) const {
    const int64_t row = divide(i, width);
    return i < channels ? row * channels + i : -1;
  }
};

template <class T>
void add_up_slices(const WgradWgmma<T>& work, Context& context) {
  if (work.taps == 1) {
    block::sum_slices(work.sums, work.slices, work.sums_per_slice(), work.e.weight, context,
                      IndexInRow{int64_t(work.units) * block::row_elements, work.e.channels});
    return;
  }
  const auto launch = [&](auto kernel, int lanes) {
    block::launch_early(kernel, unsigned(work.e.m * ceil_div(work.e.channels, int64_t(sum_channels))),
                        lanes * add_columns, work.taps * sum_channels * int(sizeof(float)), context, work);
    check_launch("implicit_gemm");
  };
  // So many lanes and loads at once that few blocks run after others, which was the fastest on an H100.
  if (work.slices > 64) {
    launch(add_units<T, 8, 17, 1>, 8);
  } else if (work.slices > 16) {
    launch(add_units<T, 4, 8, 4>, 4);
  } else if (work.slices > 8) {
    launch(add_units<T, 2, 8, 6>, 2);
  } else {
    launch(add_units<T, 1, 8, 12>, 1);
  }
}

}  // namespace tp::conv
