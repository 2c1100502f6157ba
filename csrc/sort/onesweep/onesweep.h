// The parts of onesweep, each compiled by itself: which one a stretch of keys goes to depends on its length.
#pragma once
#include "block/offsets.h"
#include "sort/onesweep/problems.h"
#include "sort/sort.h"

namespace tp::sort::device {

// Segments that only the device knows of: the numbers of `count` of them, but no more than `most`.
struct Listed {
  block::Offsets offsets;
  const unsigned* segments;
  const unsigned long long* count;
  int64_t most;
};

// Whether the segments of a call are the first or the last of all: who has them copies what lies before or after them.
struct Ends {
  bool first, last;
};

// A sort's tiles and its cleared state.
struct Plan {
  Problems problems;
  State state;
  int passes;
  int64_t most_tiles;
};
Plan plan_rows(const Args&, int tile_items, Context&);
Plan plan_listed(const Args&, const Listed&, int tile_items, Context&);

// Sorts by passes over memory: the rows, or the segments that are listed.
void sort_long(const Args&, const Listed*, Context&);
template <class W, bool floating>
void sort_long(const Args&, const Listed*, Context&);

// Sorts stretches that fit on chip: rows, or segments by their lengths. Longer segments are left alone, and listed in
// what is returned.
template <class W>
void sort_rows_on_chip(const Args&, Context&);
template <class W>
Listed sort_segments_on_chip(const Args&, Ends, Context&);

// What fits on chip.
constexpr int64_t short_most = 8192;

}  // namespace tp::sort::device
