// What the kernels of wgrad_wgmma.cuh share: the units of dw, and the part of them that a block computes.
#pragma once
#include "conv/divisor.h"
#include "conv/tensor_map.cuh"

namespace tp::conv {

// A slab of wgrad_patches.cuh: groups of eight pixels, in `rows` rows of each of `images` images.
struct PatchSlab {
  int images, rows, pitch, pairs;  // pitch: pixels from one row of a patch to the next; pairs of groups
  int dy_bytes, x_bytes;
  int64_t across, down;  // slabs beside and below each other
  bool is_ragged;        // whether some of them extend beyond dy
};

// The arguments of the kernels. What a block needs first comes first, because it is in no cache yet.
template <class T>
struct WgradWgmma {
  int slabs, slices;                 // of the inner dimension
  bool is_whole;                     // whether the blocks of a tile are a cluster, which writes dw
  int groups, taps, units;           // taps and units of one group
  int map_blocks, unit_blocks;       // that dw is divided into
  int stages, stage_bytes;           // of the ring in shared memory
  int x_group, dy_group;             // the distance in channels between groups
  Divisor by_across{1}, by_down{1};  // divide the pixels of an image or, with patches, its slabs
  PatchSlab slab{};                  // with patches
  CUtensorMap dy, x;
  float* sums;  // unless is_whole: [slices][groups][maps][units][64]
  Elements<T> e;

  explicit WgradWgmma(const Elements<T>& e)
      : groups(int(e.groups)),
        taps(int(e.taps())),
        units(int(e.taps() * ceil_div(e.channels, int64_t(block::row_elements)))),
        e(e) {}
  TP_HD int cluster() const { return is_whole ? slices : 1; }
  TP_HD int64_t sums_per_slice() const { return e.groups * e.maps * units * block::row_elements; }
};

// The cycles that a multiprocessor of an H200 takes for a slab of a tile. Its products are so many instructions of so
// many units; `busy` is the part of the multiprocessors that multiply at the same time. Or the copies take longer.
inline double slab_cycles(int instructions, int units, double busy, int copied) {
  return max(instructions * (units * 32 + 12) * (1 + busy / 4), copied / 43.0) + 15;
}

// The share of a block: one tile of dw over one slice. The blocks of a cluster differ only in their slice.
struct UnitShare {
  int group, map, unit, slice, units, first_slab, last_slab;

  // The same, by a shuffle that shows the compiler that all lanes of a warp have it.
  TP_DEVICE UnitShare of_warp() const {
    const auto same = [](int value) { return __shfl_sync(~0u, value, 0); };
    return {same(group), same(map), same(unit), same(slice), same(units), same(first_slab), same(last_slab)};
  }
};

template <class T, class Tile>
TP_DEVICE UnitShare unit_share(const WgradWgmma<T>& work) {
  const int unit = int(blockIdx.x) / work.cluster(), map = unit / work.unit_blocks, group = map / work.map_blocks,
            slice = group / work.groups + int(blockIdx.x) % work.cluster(),
            first_unit = unit % work.unit_blocks * Tile::units;
  return {group % work.groups,
          map % work.map_blocks * Tile::blocks * 64,
          first_unit,
          slice,
          min(work.units - first_unit, Tile::units),
          int(int64_t(slice) * work.slabs / work.slices),
          int(int64_t(slice + 1) * work.slabs / work.slices)};
}

}  // namespace tp::conv
