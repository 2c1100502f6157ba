// The parts of onesweep, each compiled separately. The length of a segment decides which part sorts it.
#pragma once
#include "block/offsets.h"
#include "sort/onesweep/problems.h"
#include "sort/sort.h"

namespace tp::sort::device {

// Segments in a list on the device: `*count` segment numbers, of which at most `most` are used.
struct Listed {
  block::Offsets offsets;
  const unsigned* segments;
  const unsigned long long* count;
  int64_t most;
};

// Tells whether a call has the first or the last of all segments; such a call also copies the keys before or after
// them.
struct Ends {
  bool first, last;
};

// Memory of a sort: its tiles, and the state in global memory, which is cleared.
struct Workspace {
  Problems problems;
  State state;
  int passes;
  int64_t most_tiles;
};
Workspace workspace_of_rows(const Args&, int tile_items, Context&);
Workspace workspace_of_listed(const Args&, const Listed&, int tile_items, Context&);

// Sorts by passes over memory: all rows, or only the listed segments.
void sort_long(const Args&, const Listed*, Context&);
template <class W, bool floating>
void sort_long(const Args&, const Listed*, Context&);

// Sorts rows that fit on chip, by a method that depends on their length.
template <class W>
void sort_rows_on_chip(const Args&, Context&);

// Segments by class of length: class 0 are segments of up to 32 keys, and each class has twice the length of the one
// before, up to 8192 keys. The last class has the rest.
constexpr int classes = 10, long_class = classes - 1;
struct Lists {
  block::Offsets offsets;
  unsigned* segments[classes];
  int64_t most[classes];  // capacity of each list; segments that overlap may exceed it, and are then dropped
  unsigned long long* counts;

  Listed at(int c) const { return {offsets, segments[c], counts + c, most[c]}; }
};

// Sorts segments of up to 16 keys, and lists the others.
template <class W>
Lists classify_segments(const Args&, Ends, Context&);
// Sorts the listed segments that fit on chip, which are all but those of the last class.
template <class W>
void sort_classes(const Args&, const Lists&, Context&);

// The length of the longest row or segment that can be sorted on chip.
constexpr int64_t short_most = 8192;

}  // namespace tp::sort::device
