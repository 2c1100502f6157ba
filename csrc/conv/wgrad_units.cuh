// What the kernels of wgrad_wgmma.cuh share: the units of dw, and the part of them that a block computes.
#pragma once
#include "conv/divisor.h"
#include "conv/tensor_map.cuh"

namespace tp::conv {

// How the products of wgrad_patches.cuh go through a factor of a slab: the distance in bytes of the groups of a pair;
// and from one pair to the next, and besides from one turn to the next, in units of 16 bytes.
struct PairWalk {
  int apart, step, turn;
};

// A slab of wgrad_patches.cuh: groups of eight pixels, in `rows` rows of each of `images` images. A product reads a
// pair of groups: in the same row of two images or, if there is only one, in two rows. `turns` times `pairs` of them
// follow each other.
struct PatchSlab {
  int images, rows, pitch;  // pitch: pixels from one row of a patch to the next
  int dy_bytes, x_bytes;
  int turns, pairs;
  PairWalk of_dy, of_x;
  int64_t across, down;  // slabs beside and below each other
  bool is_ragged;        // whether some of them extend beyond dy
};

// The arguments of the kernels. What a block needs first comes first, because it is in no cache yet.
template <class T>
struct WgradWgmma {
  int slices, slabs_each, extra;       // of the inner dimension: the first `extra` slices have one slab more
  bool is_whole;                       // whether the blocks of a tile are a cluster, which writes dw
  int groups, taps, units;             // taps and units of one group
  Divisor by_map_block{1};             // divides the blocks of maps of all groups
  Divisor by_across{1}, by_down{1};    // divide the pixels of an image or, with patches, its slabs
  int slabs, map_blocks, unit_blocks;  // that the inner dimension and dw are divided into
  int stages, stage_bytes;             // of the ring in shared memory
  int x_group, dy_group;               // the distance in channels between groups
  PatchSlab slab{};                    // with patches
  CUtensorMap dy, x;
  float* sums;  // unless is_whole: [slices][groups][maps][units][64], as units then have 64 channels
  Elements<T> e;

  WgradWgmma(const Elements<T>& e, int channels)  // channels of a unit
      : groups(int(e.groups)),
        taps(int(e.taps())),
        units(int(e.taps() * ceil_div(e.channels, int64_t(channels)))),
        e(e) {}
  TP_HD int cluster() const { return is_whole ? slices : 1; }
  TP_HD int64_t sums_per_slice() const { return e.groups * e.maps * units * block::row_elements; }
};

// The sums of a thread, in blocks of 64 maps.
template <class Tile>
using UnitTileSums = float[Tile::blocks_each][Tile::units_each * Tile::channels / 2];

// The cycles that a multiprocessor of an H200 takes for the products of a slab of a tile, or for its copies, if these
// take longer. The products are so many instructions of so many columns; to read their factors takes 37 cycles each,
// and they take longer if a part `busy` of the multiprocessors multiplies at the same time.
inline double slab_cycles(int instructions, int columns, double busy, int copied) {
  return max(instructions * max(columns / 2 + 1.6, 37.0) * (1 + 0.03 * busy), copied / 48.0);
}

// The share of a block: one tile of dw over one slice. The blocks of a cluster differ only in their slice.
struct UnitShare {
  int group, map, unit, slice, units, first_slab, last_slab;

  // A block is (slice, block of units, block of maps and group).
  template <class Tile, class T>
  TP_DEVICE static UnitShare of(const WgradWgmma<T>& work) {
    int map = int(blockIdx.z);
    const int group = work.by_map_block.divide(map), unit = int(blockIdx.y) * Tile::units, slice = int(blockIdx.x);
    const auto first_slab = [&](int s) { return s * work.slabs_each + min(s, work.extra); };
    return {group,
            map * Tile::blocks * 64,
            unit,
            slice,
            min(work.units - unit, Tile::units),
            first_slab(slice),
            first_slab(slice + 1)};
  }
};

}  // namespace tp::conv
