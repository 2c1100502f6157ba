// What onesweep sorts: segments of keys, each independent of the others and divided into tiles. They are either rows of
// equal length, or segments listed in device memory, which the host does not know. Tiles are numbered through all
// segments.
#pragma once
#include "core/context.h"

namespace tp::sort::device {

constexpr int digit_bits = 8, radix = 1 << digit_bits;

struct Segment {
  int64_t begin, n, first_tile;
  bool divided;  // whether only the last pass moves its keys, into buckets that are sorted on chip
};

struct Tile {
  int64_t id, begin;                     // its number over all segments, and the index of its first key
  int64_t segment, row_begin, n, first;  // the number of its segment; the segment's first key, length and first tile
  int count;                             // keys in the tile; 0 means that there is no such tile
  bool divided;                          // of its segment
};

struct Problems {
  int tile_items;
  int64_t rows, n, tiles_per_row;  // for rows of equal length
  Segment* list;                   // or else a list of `counts[0]` segments with `counts[1]` tiles in all
  const unsigned* segment_of;      // [tiles]: the segment of each tile
  const unsigned long long* counts;
  bool divides;  // whether to divide segments in the list

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
      t.divided = s.divided;
    } else {
      t.segment = rows == 1 ? 0 : tile / tiles_per_row;
      t.row_begin = t.segment * n;
      t.n = n;
      t.first = t.segment * tiles_per_row;
      t.divided = false;
    }
    const int64_t at = (tile - t.first) * tile_items;
    t.begin = t.row_begin + at;
    t.count = int(tp::min(t.n - at, int64_t(tile_items)));
    return t;
  }
#endif
};

// The state that the launches of one sort share.
struct State {
  unsigned long long* starts;   // [segments, passes, radix]: keys per digit, then keys with smaller digits
  unsigned* done;               // [segments]: how many tiles have been counted
  unsigned long long* tickets;  // [passes]
  unsigned* active;  // [0]: bit p is set if keys differ in digit p; [1]: not 0 if some key is less than its predecessor
  // [tiles, radix] each. The passes that move keys use the two in turn; each clears the one for the next pass.
  void *tile_states, *alternate_tile_states;
  bool wide;  // tile states of 8 bytes, not 4
};

}  // namespace tp::sort::device
