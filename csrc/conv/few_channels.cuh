// dgrad and wgrad of 3 x 3 filters with stride and dilation 1, from images of a few channels to many maps, as in the
// first layer of a network.
//
// Nearly all memory traffic is dy. A lane reads it straight from memory into registers, four maps at a time: as vectors
// of maps if the maps of a pixel are contiguous, and as vectors of columns otherwise. Eight lanes have 32 maps, and the
// four groups of eight lanes have four strips of columns. In either layout, a warp reads whole sectors.
// few_channels_dgrad.cuh and few_channels_wgrad.cuh have the kernels; here is what they share.
#pragma once
#include "block/warp.cuh"
#include "conv/strips.cuh"

namespace tp::conv {

constexpr int few_threads = 128, few_warps = few_threads / block::warp_size, few_residents = 3;
constexpr int64_t few_blocks = 132 * few_residents;  // as many as an H200 runs at once
constexpr int maps_per_lane = 4, maps_per_warp = 8 * maps_per_lane, strips_per_warp = 4;

// The position of a lane in its warp. Neighbouring lanes read neighbouring addresses: maps of one pixel if `last`,
// which says that images are in channels_last, and columns of one map otherwise.
template <bool last>
struct FewLane {
  static constexpr int strip_step = last ? 8 : 1, map_step = last ? 1 : 4;  // from one lane to the next
  int strip, maps;                                                          // maps: which four of 32

  TP_DEVICE FewLane() {
    const int lane = int(threadIdx.x) % block::warp_size;
    strip = lane / strip_step % strips_per_warp;
    maps = lane / map_step % 8;
  }
};

// Loads four maps of `before` + `columns` + `after` pixels of one row, of which `from` is the first. Pixels whose bit
// in `present` is not set count as zeros. If maps are contiguous, all four exist; otherwise `maps` of them do, and all
// vectors of 4 columns from column `before` on exist entirely or not at all.
template <bool last, int before, int columns, int after, class T>
TP_DEVICE void load_maps(const T* from, const Strides& strides, unsigned present, int maps,
                         T (&to)[maps_per_lane][before + columns + after]) {
  using V = block::Vector<T, 4>;
  if constexpr (last) {
#pragma unroll
    for (int j = 0; j < before + columns + after; ++j) {
      V v{};
      if (present >> j & 1) v = *reinterpret_cast<const V*>(from + j * int(strides.col));
#pragma unroll
      for (int k = 0; k < maps_per_lane; ++k) to[k][j] = v.v[k];
    }
  } else {
#pragma unroll
    for (int k = 0; k < maps_per_lane; ++k) {
      const T* const map = from + k * int(strides.channel);
#pragma unroll
      for (int j = 0; j < before + columns + after; ++j) {
        if (j >= before && j < before + columns) continue;
        to[k][j] = T(0);
        if (k < maps && (present >> j & 1)) to[k][j] = map[j];
      }
#pragma unroll
      for (int j = before; j < before + columns; j += 4) {
        V v{};
        if (k < maps && (present >> j & 1)) v = *reinterpret_cast<const V*>(map + j);
#pragma unroll
        for (int i = 0; i < 4; ++i) to[k][j + i] = v.v[i];
      }
    }
  }
}

inline bool is_channels_last(const Strides& strides, int64_t channels) {
  return strides.channel == 1 && strides.col == channels;
}

// Whether lanes can read dy in vectors, and `quarters` quarters of them have maps.
template <class T>
bool fits_few_channels(const Elements<T>& e, bool last, int quarters) {
  const int64_t lanes = ceil_div(e.maps, int64_t(maps_per_warp)) * maps_per_warp;
  return e.groups == 1 && 4 * e.maps >= quarters * lanes && (last ? e.maps : e.cols.out) % 4 == 0 &&
         reinterpret_cast<uintptr_t>(e.y) % (4 * sizeof(T)) == 0;
}

}  // namespace tp::conv
