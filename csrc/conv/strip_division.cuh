// How the host divides a batch among the blocks of strips_gather.cuh.
#pragma once
#include "conv/strip_tile.cuh"

namespace tp::conv {

constexpr int64_t multiprocessors = 132;  // of an H200

// Whether the tile's assumption about the ends of rows holds for this problem.
template <class Tile, class T>
bool fits_ends(const Gather<T>& g) {
  const int64_t pad = Tile::K - 1 - g.cols.pad;  // of dgrad
  if (!Tile::for_dgrad) return true;
  if (g.pass != Pass::dgrad || g.cols.in > (Tile::trims ? Tile::columns : 64)) return false;
  return Tile::trims ? g.cols.pad == 0 : pad >= 0 && pad % Tile::width == 0 && g.cols.out % Tile::width == 0;
}

// The choice of StripPlan's numbers. choose_tile() must succeed first, then choose_images() sets the others.
template <class T, class Tile>
struct StripDivision {
  using A = acc_t<T>;
  const Gather<T>& g;
  bool backward = g.pass == Pass::dgrad;
  GatherAxis rows = gather_axis(g.rows, g.pass, 0), cols = gather_axis(g.cols, g.pass, 0);
  int pad_rows = int(backward ? Tile::K - 1 - g.rows.pad : g.rows.pad);
  int pad_cols = int(backward ? Tile::K - 1 - g.cols.pad : g.cols.pad);
  int strips = 1, map_groups = 1, row_tiles = 1, pitch = 0;
  int images = 1, chunk = 1;
  int64_t slots = g.n;

  static int least(int64_t a, int64_t b) { return int(min(a, b)); }
  int threads(int images) const { return ceil_div(strips * row_tiles * map_groups * images, 32) * 32; }
  int window_rows() const {
    const int all = row_tiles * Tile::tile_rows + Tile::K - 1;
    return backward ? least(all, rows.sources) : all;
  }
  // The filters of one group of maps.
  int64_t filter_bytes() const { return g.depth * Tile::K * Tile::weights * int64_t(sizeof(A)); }
  int64_t bytes(int images, int chunk) const {
    const int64_t values = Window<T>::image_pitch(chunk * window_rows() * pitch, Tile::width);
    return map_groups * filter_bytes() + (2 * (images * values + 4) + 64) * int64_t(sizeof(A));
  }
  bool fits(int images, int chunk) const { return bytes(images, chunk) <= strip_bytes(threads(images)); }

  // The number of blocks that share an image, and of those that process one tile of images.
  int64_t across() const { return ceil_div(cols.outputs, int64_t(strips * Tile::columns)); }
  int64_t down() const { return ceil_div(rows.outputs, int64_t(row_tiles * Tile::tile_rows)); }
  int64_t map_blocks() const { return ceil_div(g.maps, int64_t(map_groups * Tile::maps)); }
  int64_t tiles() const { return across() * down() * map_blocks() * g.groups; }
  int64_t image_tiles() const { return ceil_div(g.n, int64_t(images)); }
  bool divisible() const { return image_tiles() < dividend_limit && tiles() * slots < dividend_limit; }

  // Chooses the numbers of strips, of groups of maps and of rows of tiles for a block. Returns false if the filters of
  // one group of maps and the window of one tile do not fit in shared memory.
  bool choose_tile() {
    strips = least(ceil_div(cols.outputs, int64_t(Tile::columns)), max(1, 64 / Tile::columns));
    const int64_t all_groups = ceil_div(g.maps, int64_t(Tile::maps)),
                  most_groups = min(int64_t(8), filter_bytes_per_block / filter_bytes());
    if (most_groups == 0) return false;
    // The numbers of groups of maps differ as little as possible between blocks.
    map_groups = int(ceil_div(all_groups, ceil_div(all_groups, most_groups)));
    row_tiles = least(ceil_div(rows.outputs, int64_t(Tile::tile_rows)), max(1, Tile::threads / (strips * map_groups)));
    // The pitch of a window is that of memory if a block has whole rows and needs no zeros beside them.
    const int columns = (strips - 1) * Tile::columns + Tile::source_columns;
    const bool as_in_memory = Tile::for_dgrad || (pad_cols == 0 && cols.outputs <= strips * Tile::columns &&
                                                  cols.sources == columns && cols.sources % Tile::width == 0);
    pitch = Tile::trims ? ceil_div(columns, 2) * 2 : as_in_memory ? int(cols.sources) : pitch_for(columns, Tile::width);
    while (row_tiles > 1 && !fits(1, 1)) row_tiles = (row_tiles + 1) / 2;
    return fits(1, 1);
  }

  // Chooses the numbers of images and channels per step. Blocks run in rounds of as many as the device can hold; takes
  // the number of images with which the busiest multiprocessor has the least work.
  void choose_images() {
    const int items = strips * row_tiles * map_groups;
    const int most = across() * down() == 1 ? least(max(1, Tile::threads / items), g.n) : 1;
    int64_t least_work = -1;
    for (int n = 1; n <= most && fits(n, 1); ++n) {
      int c = least(g.depth, 32);
      while (c > 1 && !fits(n, c)) --c;
      c = int(ceil_div(g.depth, ceil_div(g.depth, int64_t(c))));  // the same number of channels each time
      const int64_t resident =
          max(int64_t(1), min(int64_t(strip_warps<Tile, A> * 32 / threads(n)), int64_t(220) * 1024 / bytes(n, c)));
      const int64_t all = ceil_div(g.n, int64_t(n)),
                    rounds = min(all, ceil_div(all * tiles(), multiprocessors * resident));
      const int64_t blocks = ceil_div(all, rounds);
      const int64_t work = rounds * ceil_div(blocks * tiles(), multiprocessors) * threads(n);
      if (least_work >= 0 && work > least_work) continue;
      least_work = work;
      images = n;
      chunk = c;
      slots = blocks;
    }
  }

  // The longest vectors to which all rows of the target are aligned.
  int vector() const {
    int longest = 1;
    for (int width = 2; width <= 4 && g.target_strides.col == 1; width *= 2) {
      if (cols.outputs % width == 0 && reinterpret_cast<uintptr_t>(g.target) % (width * sizeof(T)) == 0)
        longest = width;
    }
    return longest;
  }

  Window<T> window() const {
    const int first_row = down() > 1 ? 1 : backward ? max(0, -pad_rows) : -pad_rows;
    const int first_col = Tile::for_dgrad ? 0 : across() > 1 ? 1 : -pad_cols;
    return Window<T>(g.source, g.source_strides, rows.sources, cols.sources, images, chunk, window_rows(), pitch,
                     Tile::width, first_row, first_col, threads(images));
  }

  StripPlan<T, Tile> plan() const {
    return {g,
            window(),
            images,
            row_tiles,
            strips,
            map_groups,
            chunk,
            int(image_tiles()),
            int(slots),
            pad_rows,
            pad_cols,
            threads(images),
            vector(),
            Divisor(across()),
            Divisor(down()),
            Divisor(map_blocks()),
            Divisor(g.groups),
            Divisor(map_groups),
            Divisor(strips),
            Divisor(images),
            Divisor(g.depth)};
  }
};

}  // namespace tp::conv
