// The shape of a thread's work on a strip of pixels, how a batch is divided among blocks, and the position of a thread
// in it: its parts of the source and of the target (strips_gather.cuh).
#pragma once
#include "conv/strips.cuh"

namespace tp::conv {

// What a thread reads beyond the ends of the source's rows. The latter two are for dgrad of small images; a window then
// holds whole channels, exactly as they are stored in memory.
enum class Ends {
  zeros,    // the window contains zeros there
  vectors,  // whole vectors are outside; they count as zeros and are not read
  none      // a strip is a whole row of dgrad without padding; products beyond its ends are left out
};

// The shape of a thread's work.
template <int kernel, int tile_rows_, int columns_, int maps_, Ends ends_ = Ends::zeros>
struct StripTile {
  static constexpr int K = kernel, tile_rows = tile_rows_, columns = columns_, maps = maps_;
  static constexpr Ends ends = ends_;
  static constexpr bool trims = ends == Ends::none, for_dgrad = ends != Ends::zeros;
  static constexpr int width = columns % 4 == 0 ? 4 : 2;  // of the vectors in which the source is read
  static constexpr int map_width = maps % 4 == 0 ? 4 : maps % 2 == 0 ? 2 : 1;  // of the vectors of maps in the target
  static constexpr int weights = ceil_div(K * maps, 4) * 4;  // one row of the filters of a thread's maps, padded
  static constexpr int source_columns = trims ? columns - K + 1 : columns + K - 1;
  static constexpr int products = K * (trims ? source_columns : columns);  // products per row of one map's filter

  // The number of values that a thread keeps in registers while it processes a channel (add_channel), in either order.
  static constexpr int filter_values = K * K * maps + source_columns,
                       row_values = K * maps + tile_rows * source_columns;
  static constexpr bool holds_filters = filter_values < row_values;
  static constexpr int registers = tile_rows * columns * maps + min(filter_values, row_values) + 5;
  static constexpr int threads = trims ? 448 : 256;                // the most threads of a block; 448 is 14 rows of 32
  static constexpr int unroll = K * columns * maps < 100 ? K : 1;  // long loops do not fit in the instruction cache

  // The index of the source value that tap q of column j reads; it may be outside of 0..source_columns.
  static constexpr TP_HD int source(int j, int q) { return trims ? j + q - (K - 1) : j + q; }
};

// The number of warps on a multiprocessor, whose four parts have 16,384 registers each.
template <class Tile, class A>
constexpr int strip_warps = max(1, 16384 / (32 * 8 * ceil_div(Tile::registers * int(sizeof(A)) / 4, 8))) * 4;

constexpr int filter_bytes_per_block = 24 * 1024;

// The number of blocks on a multiprocessor that the registers of a tile allow.
template <class Tile, class A>
constexpr int strip_blocks = max(1, min(4, 65536 / Tile::threads / (Tile::registers * int(sizeof(A)) / 4)));

// The shared memory that a block may use, so that registers and not shared memory limit the number of blocks.
constexpr int64_t strip_bytes(int threads) {
  return min(int64_t(72), max(int64_t(40), threads * int64_t(288) / 1024)) * 1024;
}

// How a batch is divided among blocks. The tile of a block is row_tiles * tile_rows x strips * columns target pixels of
// `images` images, for `map_groups` times the maps of a thread. The block then processes the images that are
// `image_slots` tiles further on.
template <class T, class Tile>
struct StripPlan {
  using A = acc_t<T>;
  Gather<T> gather;
  Window<T> window;
  // Per block; `chunk` is how many channels are staged at a time.
  int images, row_tiles, strips, map_groups, chunk;
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

// The position of a thread in its block, and of the block in the batch.
struct StripPosition {
  int map_group, strip, image, row_tile;  // of the thread, inside the block
  int group, map, row, col, image_slot;   // of the block: its group, its first map in that group, its first pixel
  bool works;                             // whether the thread has pixels of the target
};

template <class T, class Tile>
TP_DEVICE StripPosition strip_position(const StripPlan<T, Tile>& plan) {
  StripPosition at{};
  int rest = int(threadIdx.x);
  at.map_group = rest;
  rest = plan.per_map_groups.divide(at.map_group);
  at.strip = rest;
  rest = plan.per_strips.divide(at.strip);
  at.image = rest;
  at.row_tile = plan.per_images.divide(at.image);
  at.works = at.row_tile < plan.row_tiles;

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

// A thread's part of the source. `backward` says that the pass is dgrad.
struct StripSource {
  int row, col;      // of the block's windows
  int tile_row;      // the first row that the thread reads
  int strip_col;     // the first column, inside the window
  unsigned vectors;  // those that exist in a row; see add_channel()
};

template <bool backward, class T, class Tile>
TP_DEVICE __forceinline__ StripSource strip_source(const StripPlan<T, Tile>& plan, const StripPosition& at) {
  const Window<T>& window = plan.window;
  const int first_row = at.row - plan.pad_rows;
  StripSource from{};
  from.col = Tile::for_dgrad ? 0 : at.col - plan.pad_cols;
  // The window of dgrad contains no rows from outside of the image.
  from.row = backward ? max(0, min(first_row, window.height - window.rows)) : first_row;
  from.tile_row = first_row + at.row_tile * Tile::tile_rows;
  from.strip_col = at.strip * Tile::columns - (Tile::ends == Ends::vectors ? plan.pad_cols : 0);
  for (int v = 0; v * Tile::width < Tile::source_columns; ++v) {
    from.vectors |= unsigned(unsigned(from.strip_col + v * Tile::width) < unsigned(window.width)) << v;
  }
  return from;
}

// A thread's part of the target.
template <class T>
struct StripTarget {
  T* first;           // its first element in image 0
  int map, row, col;  // of that element
  int height, width;  // of the image
};

template <bool backward, class T, class Tile>
TP_DEVICE __forceinline__ StripTarget<T> strip_target(const StripPlan<T, Tile>& plan, const StripPosition& at) {
  const Gather<T>& g = plan.gather;
  StripTarget<T> to{};
  to.height = int(backward ? g.rows.in : g.rows.out);
  to.width = int(backward ? g.cols.in : g.cols.out);
  to.map = at.map + at.map_group * Tile::maps;
  to.row = at.row + at.row_tile * Tile::tile_rows;
  to.col = at.col + at.strip * Tile::columns;
  to.first = g.target + g.target_strides.at(0, at.group * g.maps + to.map, to.row, to.col);
  return to;
}

}  // namespace tp::conv
