// What onesweep sorts: segments of keys, each independently, cut into tiles. They are rows of equal length, or segments
// listed in device memory that the host knows nothing about. Tiles are numbered through all segments.
#pragma once
#include "core/context.h"

namespace tp::sort::device {

constexpr int digit_bits = 8, radix = 1 << digit_bits;

struct Segment {
  int64_t begin, n, first_tile;
};

struct Tile {
  int64_t id, begin;                     // its number, and the index of its first key
  int64_t segment, row_begin, n, first;  // the number of its segment; the segment's first key, length and first tile
  int count;                             // keys in the tile; 0: there is no such tile
};

struct Problems {
  int tile_items;
  int64_t rows, n, tiles_per_row;  // rows of equal length
  const Segment* list;             // or else a list of `counts[0]` segments of `counts[1]` tiles,
  const unsigned* segment_of;      // [tiles]
  const unsigned long long* counts;

#ifdef __CUDACC__
  TP_DEVICE int64_t tiles() const { return list ? int64_t(counts[1]) : rows * tiles_per_row; }
  TP_DEVICE int64_t tiles_of(const Tile& t) const { return ceil_div(t.n, int64_t(tile_items)); }
  TP_DEVICE Tile find(int64_t tile) const {
    Tile t;
    t.id = tile;
    if (list) {
      t.segment = segment_of[tile];
      const Segment s = list[t.segment];
      t.row_begin = s.begin;
      t.n = s.n;
      t.first = s.first_tile;
    } else {
      t.segment = rows == 1 ? 0 : tile / tiles_per_row;
      t.row_begin = t.segment * n;
      t.n = n;
      t.first = t.segment * tiles_per_row;
    }
    const int64_t at = (tile - t.first) * tile_items;
    t.begin = t.row_begin + at;
    t.count = int(tp::min(t.n - at, int64_t(tile_items)));
    return t;
  }
#endif
};

// What the launches of one sort pass on to each other.
struct State {
  unsigned long long*
      starts;      // [segments, passes, radix]: counts of keys per digit, then counts of keys with a smaller digit
  unsigned* done;  // [segments]: tiles that have been counted
  unsigned long long* tickets;  // [passes]
  unsigned* active;             // bit p: keys differ in digit p; [1]: some key is less than its predecessor
  void *tile_states, *alternate_tile_states;  // [tiles, radix] each. Active passes use the two in turn, and
  bool wide;                                  // each clears the array of the next. States of 8 bytes if wide, else of 4
};

}  // namespace tp::sort::device
