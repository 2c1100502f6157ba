// Sums of wgrad that many blocks share: each stores those of its tile to its slice, and a second kernel adds them up,
// in an order that depends only on the sizes and on the kind of device.
#pragma once
#include "block/slices.cuh"
#include "conv/wgrad_sums.cuh"

namespace tp::conv {

// Copies the tile to its slice, by one instruction per map, which may run until wait_for_stores(). The multiplying
// warps call it.
template <class Tile, class T>
TP_DEVICE void store_sums(const WgradWgmma<T>& work, const UnitShare& share, const float* pool) {
  block::publish_shared();
  block::sync_warps(1, Tile::warps);
  const int row = int(threadIdx.x), bytes = share.units * Tile::channels * int(sizeof(float));
  static_assert(UnitSums<Tile>::maps <= Tile::warps * 32);
  if (row >= UnitSums<Tile>::maps || share.map + row >= work.e.maps) return;
  const int64_t at = (share.group * work.e.maps + share.map + row) * work.units + share.unit;
  float* const to = work.sums + share.slice * work.sums_per_slice() + at * Tile::channels;
  block::store_bytes(pool + row * UnitSums<Tile>::pitch, bytes, to);
  block::commit_stores();
}

// A block adds up the sums of some channels of one map under all taps, which are contiguous in dw. Each of `lanes`
// threads adds up every lanes-th slice, for four neighbouring channels under one tap.
constexpr int add_columns = 72, most_taps = 256;

// So many channels that the block adds up all at once, if possible.
TP_HD constexpr int sum_channels(int taps) {
  int channels = 32;
  while (channels > 4 && channels * taps > add_columns * 4) channels /= 2;
  return channels;
}

// A thread loads `at_once` slices before it adds any, and a multiprocessor runs `together` blocks.
template <class T, int lanes, int at_once, int together>
__global__ void __launch_bounds__(lanes* add_columns, together) add_units(const __grid_constant__ WgradWgmma<T> work) {
  __shared__ float4 pool[lanes][add_columns];
  extern __shared__ float totals[];
  const int taps = work.taps, channels = int(work.e.channels), slices = work.slices, each = sum_channels(taps);
  const int column = int(threadIdx.x) % add_columns, lane = int(threadIdx.x) / add_columns;
  const int blocks = ceil_div(channels, each), map = int(blockIdx.x) / blocks,
            channel = int(blockIdx.x) % blocks * each;
  const int64_t next = work.sums_per_slice();
  const float* const sums = work.sums + lane * next + int64_t(map) * work.units * work.unit_channels;
  block::wait_for_launch_before();
  for (int first = 0; first < taps * each / 4; first += add_columns) {
    const int tap = (first + column) / (each / 4), from_channel = channel + (first + column) % (each / 4) * 4,
              unit = from_channel / work.unit_channels * taps + tap;
    // Each lane adds up its slices.
    float4 total{};
    if (tap < taps && unit < work.units) {
      const float* from = sums + unit * work.unit_channels + from_channel % work.unit_channels;
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
      if (index < taps * each) totals[index % each * taps + index / each] = all;
    }
    __syncthreads();
  }
  const int count = min(channels - channel, each) * taps;
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
    block::launch_early(kernel, unsigned(work.e.m * ceil_div(work.e.channels, int64_t(sum_channels(work.taps)))),
                        lanes * add_columns, work.taps * sum_channels(work.taps) * int(sizeof(float)), context, work);
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
