// How fprop and dgrad are divided into tiles for the tensor cores of Hopper, and the patches of the source that a tile
// reads (gather_wgmma.cuh).
#pragma once
#include "conv/divisor.h"
#include "conv/gather_gemm.cuh"
#include "conv/tensor_map.cuh"

namespace tp::conv {

// The tile of a block: `positions` pixels by `maps` maps, of which each warpgroup computes 64. Pixels are the columns
// of the products, of which instructions take 8 to 256 in steps of 8. So a tile can have about as many as it needs, and
// many columns share what is read of the filters: shared memory has no more bandwidth than the products need.
template <int positions_, int maps_>
struct WgmmaTile {
  static constexpr int positions = positions_, maps = maps_;
  static constexpr int groups = maps / 64, warps = groups * 4, sums = positions / 2;  // sums: of a thread
  static constexpr int filter_bytes = maps * block::row_bytes;
  static constexpr bool can_split = positions < 256;  // whether there is memory for it (gather_splits.cuh)
  // Blocks per multiprocessor.
  static constexpr int together = positions * maps <= 64 * 64 ? 3 : groups == 1 ? 2 : 1;
  static constexpr int threads = warps * 32 + 64;  // two warps copy

  // The cycles that a multiprocessor of an H200 takes for one tap of 64 channels, of which it copies a patch `patches`
  // times. It computes 2,048 products per cycle. Its shared memory is accessed at 125 bytes per cycle, by the copies
  // and by each warpgroup, which reads 64 maps and all positions. Copies arrive at 56 bytes per cycle, one per 220
  // cycles.
  static double tap_cycles(int patch_bytes, double patches) {
    const double products = double(positions) * maps * block::row_elements / 2048;
    const double copied = filter_bytes + patch_bytes * patches;
    const double read = groups * (64 + positions) * block::row_bytes;
    return max(max(products, (copied + read) / 125), max(copied / 56, 220 * (1 + patches))) + 20;
  }
};

// The most phases of an axis, and the most of both that have tensor maps of their own.
constexpr int64_t most_phases = 4, most_mapped_phases = 4;

// One axis of one phase (GatherAxis), as the kernel uses it.
struct PhaseAxis {
  int outputs, first, step, taps, first_tap, tap_step, origin, source_step, source_tap, sources;
  Divisor by_output{1};

  PhaseAxis() = default;
  explicit PhaseAxis(const GatherAxis& a)
      : outputs(int(a.outputs)),
        first(int(a.first)),
        step(int(a.step)),
        taps(int(a.taps)),
        first_tap(int(a.first_tap)),
        tap_step(int(a.tap_step)),
        origin(int(a.origin)),
        source_step(int(a.source_step)),
        source_tap(int(a.source_tap)),
        sources(int(a.sources)),
        by_output(a.outputs) {}
  TP_HD operator GatherAxis() const {
    return {outputs, first, step, taps, first_tap, tap_step, origin, source_step, source_tap, sources};
  }
  TP_HD int64_t target(int64_t o) const { return first + o * step; }
  // What the tap with the least source element reads for an output.
  TP_HD int first_source(int o) const { return origin + o * source_step + min(0, (taps - 1) * source_tap); }
};

// How the targets of a phase are divided into tiles, and what a patch holds.
struct PatchShape {
  int rows, cols, pitch;  // of a tile; pitch: pixels from one row of a patch to the next
  int patch_rows, patch_bytes, stage_bytes;
  int64_t tiles_down, tiles_across, images;  // images that have tiles of their own
};

template <class T>
struct GatherWgmma {
  Gather<T> g;
  // Phases share a map of the source, except by runs.
  CUtensorMap filters, sources[most_mapped_phases], targets[most_mapped_phases];
  // Whether a tile is a run of consecutive pixels of the batch, or of a phase of it, and a patch holds what one tap of
  // them reads.
  bool by_runs = false;
  PatchShape shape;
  bool stores_boxes;  // whether `targets` are valid maps, so that boxes can be stored by one instruction
  int64_t row_phases, col_phases, map_blocks;
  PhaseAxis rows[most_phases], cols[most_phases];  // of each phase; those with the most taps come first
  // A tile's number counts blocks of maps fastest, then tiles of an image, images, phases and groups.
  Divisor by_map_block{1}, by_across{1}, by_down{1}, by_image{1}, by_col_phase{1}, by_row_phase{1};
  int slabs, patch_stages, filter_stages;
  bool keeps_filters;           // whether the stages of filters hold all that a block multiplies, tile after tile
  int splits = 1, split_slabs;  // among the blocks of a cluster (gather_splits.cuh): how many, and the slabs of each
  int tile_count;
  int image;    // where shared memory holds the image of a finished tile
  int one_row;  // 2^16 / pitch, rounded up, by which positions below 256 are divided exactly
  TP_HD int64_t tiles() const {
    return g.groups * row_phases * col_phases * shape.images * shape.tiles_down * shape.tiles_across * map_blocks;
  }
};

// One tile: `tile_rows` x `tile_cols` targets of one phase of one image, for one block of maps of one group. A run is
// one row, as if all pixels of the batch were one. The sums are over some slabs of 64 channels of the source.
struct WgmmaShare {
  const PhaseAxis &rows, &cols;
  int phase, group, map, image, row, col, tile_rows, tile_cols;
  int first_slab, last_slab;
};

template <class T>
TP_DEVICE WgmmaShare wgmma_share(const GatherWgmma<T>& work, int tile, int tile_maps) {
  int map_block = tile, across = work.by_map_block.divide(map_block), down = work.by_across.divide(across),
      image = work.by_down.divide(down), col_phase = work.by_image.divide(image),
      row_phase = work.by_col_phase.divide(col_phase), group = work.by_row_phase.divide(row_phase);
  const PhaseAxis &rows = work.rows[row_phase], &cols = work.cols[col_phase];
  const int pixels = work.by_runs ? int(work.g.n) * rows.outputs * cols.outputs : cols.outputs;
  const int row = down * work.shape.rows, col = across * work.shape.cols, rank = int(blockIdx.x);
  return {rows,
          cols,
          row_phase * int(work.col_phases) + col_phase,
          group,
          map_block * tile_maps,
          image,
          row,
          col,
          min(work.shape.rows, rows.outputs - row),
          min(work.shape.cols, pixels - col),
          rank * work.split_slabs,
          min((rank + 1) * work.split_slabs, work.slabs)};
}

// Where a pixel of a tile lies in its phase.
template <class T>
TP_DEVICE PhasePixel pixel_of_tile(const GatherWgmma<T>& work, const WgmmaShare& share, int row, int col) {
  if (!work.by_runs) return {share.image, share.row + row, share.col + col};
  int w = share.col + col, h = share.cols.by_output.divide(w);
  const int image = share.rows.by_output.divide(h);
  return {image, h, w};
}

// Calls f(share) for all tiles of a block, or of the cluster that it belongs to: the blocks (0..splits, y). Before the
// first call, while others initialize barriers, it finds the first share, then it calls ready(). Tiles with the most
// taps come first, and every other round is in reverse, so that blocks have about as much to do. In a short phase some
// tiles are empty, and are skipped.
template <class Tile, class T, class Ready, class F>
TP_DEVICE void for_tiles(const GatherWgmma<T>& work, const Ready& ready, const F& f) {
  const int tiles = work.tile_count, at_once = int(gridDim.y);
  int first = int(blockIdx.y);
  for (int round = 0; round < tiles; round += at_once, first = at_once - 1 - first) {
    const WgmmaShare share = wgmma_share(work, min(round + first, tiles - 1), Tile::maps);
    if (round == 0) ready();
    if (round + first < tiles && share.tile_rows > 0 && share.tile_cols > 0) f(share);
  }
}

// Enumerates the taps of a share. Each tap shifts the patch by down() rows and across() columns, neither of them
// negative.
class TapSteps {
 public:
  const int count;

  TP_DEVICE explicit TapSteps(const WgmmaShare& share)
      : count(share.rows.taps * share.cols.taps), down_(share.rows), across_(share.cols) {}
  TP_DEVICE int down() const { return p_ * down_.step - down_.least; }
  TP_DEVICE int across() const { return q_ * across_.step - across_.least; }
  TP_DEVICE int row_tap() const { return down_.first + p_ * down_.every; }
  TP_DEVICE int col_tap() const { return across_.first + q_ * across_.every; }
  TP_DEVICE bool first() const { return p_ == 0 && q_ == 0; }
  TP_DEVICE void next() {
    if (++q_ < across_.taps) return;
    q_ = 0;
    if (++p_ == down_.taps) p_ = 0;
  }

 private:
  struct Steps {
    int taps, step, least, first, every;
    TP_DEVICE explicit Steps(const PhaseAxis& a)
        : taps(a.taps), step(a.source_tap), least(min(0, (taps - 1) * step)), first(a.first_tap), every(a.tap_step) {}
  };
  const Steps down_, across_;
  int p_ = 0, q_ = 0;
};

// The same for the threads that multiply, in fewer registers: by how many pixels of the patch each tap is shifted.
struct TapShifts {
  // Shifts in pixels: of the first tap; from one tap to the next (across); and what is added to that from the last tap
  // of a row to the first one of the next row (down).
  int taps, across_taps, first, across, down;
  template <class T>
  TP_DEVICE TapShifts(const WgmmaShare& share, const GatherWgmma<T>& work)
      : taps(share.rows.taps * share.cols.taps), across_taps(share.cols.taps) {
    const int pitch = work.by_runs ? 0 : work.shape.pitch, pixel = work.by_runs ? 0 : 1;
    const int row_step = share.rows.source_tap * pitch, col_step = share.cols.source_tap * pixel;
    first = -min(0, (share.rows.taps - 1) * row_step) - min(0, (across_taps - 1) * col_step);
    across = col_step;
    down = row_step - across_taps * col_step;
  }
};

// The distance between the first and the last tap of an output, in the phase where that is largest.
inline int64_t reach(const Axis& a, Pass pass) {
  int64_t most = 0;
  for (int64_t phase = 0; phase < phases(a, pass); ++phase) {
    const GatherAxis axis = gather_axis(a, pass, phase);
    most = max(most, (axis.taps - 1) * max(axis.source_tap, -axis.source_tap));
  }
  return most;
}

// One axis of the convolution that reads for a target what a phase reads, as tap_map takes it.
inline Axis tap_axis(const GatherAxis& a) {
  const int64_t first = a.origin + min(int64_t(0), (a.taps - 1) * a.source_tap);
  return {a.sources, a.outputs, a.taps, a.source_step, -first, max(a.source_tap, -a.source_tap)};
}

// Cuts the batch, or each phase of it, into runs of `positions` pixels. Returns false if there are too many phases, and
// if the hardware cannot copy what a tap of a run reads.
template <class T>
bool cut_into_runs(const GatherWgmma<T>& work, int positions, PatchShape& shape) {
  const Gather<T>& g = work.g;
  const int64_t pixels = g.n * phase_outputs(g.rows, g.pass) * phase_outputs(g.cols, g.pass);
  if (pixels >= dividend_limit || work.row_phases * work.col_phases > most_mapped_phases) return false;
  for (int64_t i = 0; i < work.row_phases; ++i) {
    if (!has_tap_map(tap_axis(work.rows[i]))) return false;
  }
  for (int64_t i = 0; i < work.col_phases; ++i) {
    if (!has_tap_map(tap_axis(work.cols[i]))) return false;
  }
  const int bytes = positions * block::row_bytes;
  shape = {1, positions, positions, 1, bytes, bytes, 1, ceil_div(pixels, int64_t(positions)), 1};
  return true;
}

// Finds the tile shape that needs the fewest tiles of at most `positions` pixels. Returns false if no patch fits in
// `most_bytes`.
template <class T>
bool cut_into_patches(const Gather<T>& g, int positions, int most_bytes, PatchShape& best) {
  const GatherAxis rows = gather_axis(g.rows, g.pass, 0), cols = gather_axis(g.cols, g.pass, 0);
  const int64_t down = phase_outputs(g.rows, g.pass), across = phase_outputs(g.cols, g.pass);
  const int64_t halo_rows = reach(g.rows, g.pass), halo_cols = reach(g.cols, g.pass);
  constexpr int64_t box_rows = 256, box_cols = 256;
  const int64_t widest = max(int64_t(1), min(int64_t(positions), box_cols - halo_cols));
  int64_t fewest = 0;
  for (int64_t pieces = ceil_div(across, widest); pieces <= across; pieces *= 2) {
    const int64_t width = ceil_div(across, pieces), pitch = width + halo_cols;
    if (width > positions || pitch > box_cols) continue;
    int64_t height = min(min(down, (positions - width) / pitch + 1), box_rows - halo_rows);
    const auto bytes = [&] {
      const int64_t pixels = max((height + halo_rows) * pitch, positions + halo_rows * pitch + halo_cols);
      return ceil_div(pixels * block::row_bytes, int64_t(1024)) * 1024;
    };
    while (height > 0 && bytes() > most_bytes) --height;
    if (height <= 0) continue;
    height = ceil_div(down, ceil_div(down, height));
    const int64_t tiles_down = ceil_div(down, height), tiles_across = ceil_div(across, width);
    if (fewest > 0 && tiles_down * tiles_across >= fewest) continue;
    fewest = tiles_down * tiles_across;
    best = {int(height),
            int(width),
            int(pitch),
            int(height + halo_rows),
            int((height + halo_rows) * pitch * block::row_bytes),
            int(bytes()),
            tiles_down,
            tiles_across,
            g.n};
  }
  return fewest > 0;
}

}  // namespace tp::conv
