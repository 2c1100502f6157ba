// What onesweep sorts: stretches of keys, each by itself, cut into tiles. They are rows of equal length, or segments
// that only the device knows of, and then they are listed in memory. Tiles are numbered through all stretches.
#pragma once
#include "core/context.h"

namespace tp::sort::device {

constexpr int digit_bits = 8, radix = 1 << digit_bits;

struct Stretch {
  int64_t begin, n, first_tile;
};

struct Tile {
  int64_t id, begin;                     // its number, and where its keys begin
  int64_t stretch, row_begin, n, first;  // the number of its stretch, where that begins, its keys, its first tile
  int count;                             // keys of the tile; 0: there is no such tile
};

struct Problems {
  int tile_items;
  int64_t rows, n, tiles_a_row;  // equal rows
  const Stretch* list;           // or else a list of `counts[0]` stretches of `counts[1]` tiles,
  const unsigned* stretch_of;    // [tiles]
  const unsigned long long* counts;

#ifdef __CUDACC__
  TP_DEVICE int64_t tiles() const { return list ? int64_t(counts[1]) : rows * tiles_a_row; }
  TP_DEVICE int64_t tiles_of(const Tile& t) const { return ceil_div(t.n, int64_t(tile_items)); }
  TP_DEVICE Tile find(int64_t tile) const {
    Tile t;
    t.id = tile;
    if (list) {
      t.stretch = stretch_of[tile];
      const Stretch s = list[t.stretch];
      t.row_begin = s.begin;
      t.n = s.n;
      t.first = s.first_tile;
    } else {
      t.stretch = rows == 1 ? 0 : tile / tiles_a_row;
      t.row_begin = t.stretch * n;
      t.n = n;
      t.first = t.stretch * tiles_a_row;
    }
    const int64_t at = (tile - t.first) * tile_items;
    t.begin = t.row_begin + at;
    t.count = int(tp::min(t.n - at, int64_t(tile_items)));
    return t;
  }
#endif
};

// What the launches of one sort hand on to each other.
struct State {
  unsigned long long*
      starts;      // [stretches, passes, radix]: how many keys have a digit; then how many have a smaller one
  unsigned* done;  // [stretches]: tiles that have been counted
  unsigned long long* tickets;  // [passes]
  unsigned* active;             // bit p: pass p moves keys
  void *words, *other_words;    // [tiles, radix] each: what a tile has published. Active passes use them by turns, and
  bool wide;                    // each clears for the next. Words of 8 bytes, or else of 4
};

}  // namespace tp::sort::device
