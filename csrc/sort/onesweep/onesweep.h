// The parts of onesweep, each compiled separately. The length of a segment decides which part sorts it.
#pragma once
#include "block/offsets.h"
#include "sort/onesweep/problems.h"
#include "sort/sort.h"

namespace tp::sort::device {

// The length of the longest row or segment that can be sorted on chip.
constexpr int64_t short_most = 8192;

// Where a segment that can be sorted on chip is, in one word that lanes can exchange. Its keys are still in the input,
// or they have been moved to the output.
struct Range {
  uint64_t word;

  TP_HD static Range of(int64_t begin, int n, bool moved = false) {
    return {uint64_t(begin) << 16 | uint64_t(moved) << 15 | uint64_t(n)};
  }
  TP_HD int64_t begin() const { return int64_t(word >> 16); }
  TP_HD int n() const { return int(word & 0x7fff); }
  TP_HD bool moved() const { return (word & 0x8000) != 0; }
};
static_assert(short_most <= 0x7fff);

// Segments by class of length, in lists on the device. Class 0 are segments of up to 32 keys, and each class has twice
// the length of the one before, up to 8192 keys. The last class has the numbers of the rest.
constexpr int classes = 10, long_class = classes - 1;
constexpr int64_t least_of(int c) { return (int64_t(16) << c) + 1; }
static_assert(least_of(long_class) == short_most + 1);
struct Lists {
  block::Offsets offsets;
  Range* ranges[long_class];
  unsigned* longest;
  int64_t most[classes];       // capacity of each list; segments that overlap may exceed it, and are then dropped
  unsigned long long* counts;  // the length of each list
  // Whether passes divide segments of the last class into buckets of keys with equal highest digits, which they append
  // to the lists, if all buckets of the segment can be sorted on chip.
  bool divides;
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
Workspace workspace_of_listed(const Args&, const Lists&, int tile_items, Context&);
// Lists the buckets of divided segments, once their digits have been counted.
void list_buckets(const Lists&, const Workspace&, Context&);

// Sorts by passes over memory: all rows, or only the segments of the last class.
void sort_long(const Args&, const Lists*, Context&);
template <class W, bool floating>
void sort_long(const Args&, const Lists*, Context&);

// Sorts rows that fit on chip, by a method that depends on their length.
template <class W>
void sort_rows_on_chip(const Args&, Context&);

#ifdef __CUDACC__
TP_DEVICE inline int class_of(int64_t n) { return n > short_most ? long_class : tp::max(0, 27 - __clz(int(n) - 1)); }
#endif

// Sorts segments of up to 16 keys, and lists the others.
template <class W>
Lists classify_segments(const Args&, Ends, Context&);
// Sorts the listed segments that fit on chip, which are all but those of the last class.
template <class W>
void sort_classes(const Args&, const Lists&, Context&);

}  // namespace tp::sort::device
