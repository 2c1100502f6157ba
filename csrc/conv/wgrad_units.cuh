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
  int slices, slabs_each, extra;  // of the inner dimension: the first `extra` slices have one slab more
  bool is_whole;                  // whether the blocks of a tile are a cluster, which writes dw
  int groups, taps, units;        // taps and units of one group
  int unit_channels;
  int tiles;                         // of dw
  Divisor by_unit_block{1};          // divides the tiles
  Divisor by_map_block{1};           // divides the blocks of maps of all groups
  Divisor by_across{1}, by_down{1};  // divide the pixels of an image or, with patches, its slabs
  int slabs;                         // that the inner dimension is divided into
  int stages, stage_bytes;           // of the ring in shared memory
  int image;                         // where shared memory holds a finished tile
  int x_group, dy_group;             // the distance in channels between groups
  PatchSlab slab{};                  // with patches
  CUtensorMap dy, x, dw{};           // dw is valid if boxes can be stored
  float* sums;                       // unless is_whole: [slices][groups][maps][units][unit_channels]
  Elements<T> e;

  WgradWgmma(const Elements<T>& e, int unit_channels)
      : groups(int(e.groups)),
        taps(int(e.taps())),
        units(int(e.taps() * ceil_div(e.channels, int64_t(unit_channels)))),
        unit_channels(unit_channels),
        e(e) {}
  TP_HD int cluster() const { return is_whole ? slices : 1; }
  TP_HD int64_t sums_per_slice() const { return e.groups * e.maps * units * unit_channels; }
};

// Whether asynchronous copies can store the filters, which begin at multiples of 16 bytes.
template <class T>
TP_HD bool stores_aligned(const Elements<T>& e) {
  return e.channels % 8 == 0 && reinterpret_cast<uintptr_t>(e.weight) % 16 == 0;
}

// The sums of a thread, in blocks of 64 maps.
template <class Tile>
using UnitTileSums = float[Tile::blocks_each][Tile::units_each * Tile::channels / 2];

// The cycles that a multiprocessor of an H200 takes for the products of a slab of a tile, or for its copies, if these
// take longer. The products are so many instructions of so many columns, which take at least `least` cycles each, and
// longer if a part `busy` of the multiprocessors multiplies at the same time.
inline double slab_cycles(int instructions, int columns, double least, double busy, int copied) {
  return max(instructions * max(columns / 2 + 1.6, least) * (1 + 0.04 * busy), copied / 70.0);
}

// A share of a block: one tile of dw over one slice. The blocks of a cluster differ only in their slice.
struct UnitShare {
  int group, map, unit, slice, units, first_slab, last_slab;

  // A tile's number counts blocks of units fastest, then blocks of maps, then groups.
  template <class Tile, class T>
  TP_DEVICE static UnitShare of(const WgradWgmma<T>& work, int tile) {
    int unit = tile, map = work.by_unit_block.divide(unit);
    const int group = work.by_map_block.divide(map), slice = int(blockIdx.x);
    unit *= Tile::units;
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

// Calls f(share) for the share of a block (slice, tile) and, if it goes on, for those that follow.
template <class Tile, bool goes_on, class T, class F>
TP_DEVICE void for_shares(const WgradWgmma<T>& work, UnitShare share, const F& f) {
  for (int tile = int(blockIdx.y);;) {
    f(share);
    tile += int(gridDim.y);
    if (!goes_on || tile >= work.tiles) return;
    share = UnitShare::of<Tile>(work, tile);
  }
}

}  // namespace tp::conv
