// The shape of a thread's work on a strip of pixels, how a batch is shared among blocks, and where a thread is in it
// (strips_gather.cuh).
#pragma once
#include "conv/strips.cuh"

namespace tp::conv {

// What stands beyond the ends of the rows of the source. The latter two are for dgrad of small images, whose windows
// are then whole channels as they lie in memory.
enum class Ends {
  zeros,    // zeros in the window
  vectors,  // whole vectors, which are zeros without being read
  none      // a strip is a whole row of dgrad without padding: products beyond its ends are left out
};

// The shape of a thread's work.
template <int kernel, int tile_rows_, int columns_, int maps_, Ends ends_ = Ends::zeros>
struct StripTile {
  static constexpr int K = kernel, tile_rows = tile_rows_, columns = columns_, maps = maps_;
  static constexpr Ends ends = ends_;
  static constexpr bool trims = ends == Ends::none, for_dgrad = ends != Ends::zeros;
  static constexpr int width = columns % 4 == 0 ? 4 : 2;     // of vectors of the source
  static constexpr int weights = ceil_div(K * maps, 4) * 4;  // of one row of the filters of a thread's maps
  static constexpr int source_columns = trims ? columns - K + 1 : columns + K - 1;
  static constexpr int products = K * (trims ? source_columns : columns);  // of one row of one map's filter

  // What a thread keeps in registers while it goes through a channel (add_channel).
  static constexpr int filter_values = K * K * maps + source_columns,
                       row_values = K * maps + tile_rows * source_columns;
  static constexpr bool holds_filters = filter_values < row_values;
  static constexpr int registers = tile_rows * columns * maps + min(filter_values, row_values) + 5;
  static constexpr int threads = trims ? 448 : 256;                // of a block, at most; 14 rows of 32
  static constexpr int unroll = K * columns * maps < 100 ? K : 1;  // long loops do not fit the instruction caches

  // The value of the source that tap q of column j reads, or one outside of 0..source_columns.
  static constexpr TP_HD int source(int j, int q) { return trims ? j + q - (K - 1) : j + q; }
};

// Warps on a multiprocessor, whose four parts have 16,384 registers each.
template <class Tile, class A>
constexpr int strip_warps = max(1, 16384 / (32 * 8 * ceil_div(Tile::registers * int(sizeof(A)) / 4, 8))) * 4;

constexpr int filter_bytes_per_block = 24 * 1024;

// Blocks on a multiprocessor, as far as the registers of a tile go.
template <class Tile, class A>
constexpr int strip_blocks = max(1, min(4, 65536 / Tile::threads / (Tile::registers * int(sizeof(A)) / 4)));

// Shared memory for a block, so that registers limit how many blocks run at once.
constexpr int64_t strip_bytes(int threads) {
  return min(int64_t(72), max(int64_t(40), threads * int64_t(288) / 1024)) * 1024;
}

// How a batch is shared among blocks. A block's tile is row_tiles * tile_rows x strips * columns target pixels of
// `images` images, in `map_groups` times the maps of a thread; it goes on to the images `image_slots` tiles further.
template <class T, class Tile>
struct StripPlan {
  using A = acc_t<T>;
  Gather<T> gather;
  Window<T> window;
  int images, row_tiles, strips, map_groups, chunk;  // row_tiles and strips of a block; channels staged at a time
  int image_tiles, image_slots, pad_rows, pad_cols;
  int threads, vector;  // elements per access to the target: 4, 2 or 1
  Divisor tiles_across, tiles_down, map_blocks, groups;
  Divisor per_map_groups, per_strips, per_images, per_depth;

  TP_HD int filter_values() const { return int(gather.depth) * map_groups * Tile::K * Tile::weights; }
  TP_HD int shift_values() const { return ceil_div(map_groups * Tile::maps, 4) * 4; }
  int64_t shared_bytes() const { return (filter_values() + shift_values() + 2 * window.values()) * int64_t(sizeof(A)); }
  int64_t blocks() const {
    return int64_t(image_slots) * tiles_across.value * tiles_down.value * map_blocks.value * groups.value;
  }
};

// One thread's place in its block, and the block's in the batch.
struct StripPlace {
  int map_group, strip, image, row_tile;  // inside the block
  int group, map, row, col, image_slot;   // of the block: its group, first map of that group, first pixel
};

template <class T, class Tile>
TP_DEVICE StripPlace strip_place(const StripPlan<T, Tile>& plan) {
  StripPlace at{};
  int rest = int(threadIdx.x);
  at.map_group = rest;
  rest = plan.per_map_groups.divide(at.map_group);
  at.strip = rest;
  rest = plan.per_strips.divide(at.strip);
  at.image = rest;
  at.row_tile = plan.per_images.divide(at.image);

  int map_block = int(blockIdx.x), across, down;
  at.group = plan.map_blocks.divide(map_block);
  across = plan.groups.divide(at.group);
  down = plan.tiles_across.divide(across);
  at.image_slot = plan.tiles_down.divide(down);
  at.map = map_block * plan.map_groups * Tile::maps;
  at.col = across * plan.strips * Tile::columns;
  at.row = down * plan.row_tiles * Tile::tile_rows;
  return at;
}

}  // namespace tp::conv
