// How fprop and dgrad are divided into tiles for the tensor cores of Hopper, and the patches of the source that a tile
// reads (gather_wgmma.cuh).
#pragma once
#include "conv/divisor.h"
#include "conv/gather_gemm.cuh"
#include "conv/tensor_map.cuh"

namespace tp::conv {

// The tile of a block: `positions` pixels by `maps` maps. Each of its warpgroups computes `blocks` blocks of 64 rows.
// The rows are pixels and the columns are maps, or the reverse: there are instructions for columns in steps of 8, so
// that a tile whose pixels are the columns can have about as many of them as it needs.
template <int positions_, int maps_, bool pixels_are_columns_ = false>
struct WgmmaTile {
  static constexpr int positions = positions_, maps = maps_;
  static constexpr bool pixels_are_columns = pixels_are_columns_;
  static constexpr int rows = pixels_are_columns ? maps : positions, columns = pixels_are_columns ? positions : maps;
  static constexpr int groups = min(rows / 64, 2), blocks = rows / 64 / groups, sums = columns / 2;  // per block
  static constexpr bool can_split = groups == 1 && !pixels_are_columns;  // gather_splits.cuh
  static constexpr int warps = groups * 4, filter_bytes = maps * block::row_bytes;
  // Blocks per multiprocessor.
  static constexpr int together = positions * maps <= 64 * 64 ? 3 : positions * maps <= 128 * 128 ? 2 : 1;
  // A block that is alone on its multiprocessor has a whole warpgroup for copying, so that the warpgroup can give its
  // registers to the others.
  static constexpr int threads = warps * 32 + (together == 1 ? block::warpgroup : 32), registers = 216,
                       few_registers = 72;
};

constexpr int64_t most_phases = 4;

// How the targets of a phase are divided into tiles, and what a patch holds.
struct PatchShape {
  int rows, cols, pitch;  // of a tile; pitch: pixels from one row of a patch to the next
  int patch_rows, patch_bytes, stage_bytes;
  int64_t tiles_down, tiles_across, images;  // images that have tiles of their own
};

template <class T>
struct GatherWgmma {
  Gather<T> g;
  CUtensorMap source, filters, target;
  // Whether a tile is a run of consecutive pixels of the batch, and a patch holds what one tap of them reads.
  bool by_runs = false;
  PatchShape shape;
  bool stores_boxes;  // whether `target` is a valid map, so that boxes can be stored by one instruction
  int64_t row_phases, col_phases, map_blocks;
  GatherAxis rows[most_phases], cols[most_phases];  // of each phase
  // A tile's number counts blocks of maps fastest, then tiles of an image, images, phases and groups.
  Divisor by_map_block{1}, by_across{1}, by_down{1}, by_image{1}, by_col_phase{1}, by_row_phase{1};
  Divisor by_col{1}, by_row{1};  // divide the pixels of a run by the size of an image
  int slabs, patch_stages, filter_stages;
  int splits = 1;  // of the slabs, among the blocks of a cluster (gather_splits.cuh)
  int image;       // where shared memory holds the image of a finished tile
  TP_HD int64_t tiles() const {
    return g.groups * row_phases * col_phases * shape.images * shape.tiles_down * shape.tiles_across * map_blocks;
  }
};

// One tile: `tile_rows` x `tile_cols` targets of one phase of one image, for one block of maps of one group. A run is
// one row, as if all pixels of the batch were one. The sums are over some slabs of 64 channels of the source.
struct WgmmaShare {
  const GatherAxis &rows, &cols;
  int group, map, image, row, col, tile_rows, tile_cols;
  int first_slab, last_slab;
};

template <class T>
TP_DEVICE WgmmaShare wgmma_share(const GatherWgmma<T>& work, int tile, int tile_maps) {
  int map_block = tile, across = work.by_map_block.divide(map_block), down = work.by_across.divide(across),
      image = work.by_down.divide(down), col_phase = work.by_image.divide(image),
      row_phase = work.by_col_phase.divide(col_phase), group = work.by_row_phase.divide(row_phase);
  const GatherAxis &rows = work.rows[row_phase], &cols = work.cols[col_phase];
  const int pixels = work.by_runs ? int(work.g.n * rows.outputs * cols.outputs) : int(cols.outputs);
  const int row = down * work.shape.rows, col = across * work.shape.cols, rank = int(blockIdx.x) % work.splits;
  return {rows,
          cols,
          group,
          map_block * tile_maps,
          image,
          row,
          col,
          min(work.shape.rows, int(rows.outputs) - row),
          min(work.shape.cols, pixels - col),
          rank * work.slabs / work.splits,
          (rank + 1) * work.slabs / work.splits};
}

// Where a pixel of a tile lies in its phase.
template <class T>
TP_DEVICE PhasePixel pixel_of_tile(const GatherWgmma<T>& work, const WgmmaShare& share, int row, int col) {
  if (!work.by_runs) return {share.image, share.row + row, share.col + col};
  int w = share.col + col, h = work.by_col.divide(w);
  const int image = work.by_row.divide(h);
  return {image, h, w};
}

// Calls f(share) for all tiles of a block, or of the cluster that it belongs to. In a short phase some tiles are empty,
// and are skipped.
template <class Tile, class T, class F>
TP_DEVICE void for_tiles(const GatherWgmma<T>& work, const F& f) {
  const int tiles = int(work.tiles());
  for (int tile = int(blockIdx.x) / work.splits; tile < tiles; tile += int(gridDim.x) / work.splits) {
    const WgmmaShare share = wgmma_share(work, tile, Tile::maps);
    if (share.tile_rows > 0 && share.tile_cols > 0) f(share);
  }
}

// Enumerates the taps of a share. Each tap shifts the patch by down() rows and across() columns, neither of them
// negative.
class TapSteps {
 public:
  const int count;

  TP_DEVICE explicit TapSteps(const WgmmaShare& share)
      : count(int(share.rows.taps * share.cols.taps)), down_(share.rows), across_(share.cols) {}
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
    TP_DEVICE explicit Steps(const GatherAxis& a)
        : taps(int(a.taps)),
          step(int(a.source_tap)),
          least(min(0, (taps - 1) * step)),
          first(int(a.first_tap)),
          every(int(a.tap_step)) {}
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
      : taps(int(share.rows.taps * share.cols.taps)), across_taps(int(share.cols.taps)) {
    const int pitch = work.by_runs ? 0 : work.shape.pitch, pixel = work.by_runs ? 0 : 1;
    const int row_step = int(share.rows.source_tap) * pitch, col_step = int(share.cols.source_tap) * pixel;
    first = -min(0, (int(share.rows.taps) - 1) * row_step) - min(0, (across_taps - 1) * col_step);
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

// One axis of the convolution that reads for a target what g reads, as tap_map takes it.
inline Axis tap_axis(const Axis& a, Pass pass) {
  if (pass == Pass::fprop) return a;
  return {a.out, a.in, a.kernel, 1, (a.kernel - 1) * a.dilation - a.pad, a.dilation};
}

// Cuts the batch into runs of `positions` pixels. Returns false for dgrad with a stride, which has phases, and if the
// hardware cannot copy what a tap of a run reads.
template <class T>
bool cut_into_runs(const Gather<T>& g, int positions, PatchShape& shape) {
  const int64_t pixels = g.n * phase_outputs(g.rows, g.pass) * phase_outputs(g.cols, g.pass);
  if (pixels >= dividend_limit || (g.pass == Pass::dgrad && max(g.rows.stride, g.cols.stride) > 1)) return false;
  if (!has_tap_map(tap_axis(g.rows, g.pass)) || !has_tap_map(tap_axis(g.cols, g.pass))) return false;
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
