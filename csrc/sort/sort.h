// Sorting (PMPP chapter 13; 000 names bitonic sort): the keys of a row in order, and what goes with them.
//
// Radix sorts never compare two keys. They partition by a digit of the key, stably, and a partition is a scan: a key's
// place is the number of keys with a smaller digit, plus that of equal digits before it. From the least digit up, each
// pass keeps the order of the passes before (LSD); from the most significant down, each bucket becomes a problem of its
// own (MSD). The rungs of §13.4 to §13.6 make the writes of a pass run together: a block sorts its tile first, more
// bits at a time, with more keys to a thread. Comparison sorts merge sorted tiles (§13.7), exchange along a fixed
// network, or split at sampled keys (§13.8).
//
// Every rung takes every problem and is stable. Keys are raw words in the order of core/key.h: ascending or descending,
// whole or inside a window of bits. Where an algorithm is not stable by nature, equal keys are told apart by the place
// that they came from. What goes with the keys are values of 1 to 16 bytes, or the positions themselves (argsort), or
// nothing, and then nothing but keys is moved by the radix sorts.
//
// segment_sort is the same for rows of different lengths, laid end to end: the difficulty is balance, not order.
#pragma once
#include "core/key.h"
#include "core/ladder.h"

namespace tp::sort {

struct Args {
  const void* keys;    // [rows, n]
  void* keys_out;      // like keys; null: the order alone is asked for
  const void* values;  // [rows, n] of value_bytes each; null: positions
  void* values_out;    // like values; positions are int32 or int64, by value_bytes; null: keys alone
  int64_t rows, n;
  const void* offsets;  // segment_sort alone, [rows + 1]: row r is keys[offsets[r]] to keys[offsets[r + 1] - 1] of n in
  bool long_offsets;    // all, positions count from 0 to n, and what lies in no row is copied. int64, or else int32
  int value_bytes;      // 1, 2, 4, 8 or 16
  KeyType type;
  bool descending;
  int begin_bit, end_bit;  // of the image: 0 <= begin_bit <= end_bit <= type.bits

  int64_t size() const { return offsets ? n : rows * n; }
  int64_t begin(int64_t row) const {  // on the host, row <= rows
    if (!offsets) return row * n;
    return long_offsets ? static_cast<const int64_t*>(offsets)[row] : static_cast<const int32_t*>(offsets)[row];
  }
  bool positions() const { return values_out && !values; }
  template <class W>
  KeyOrder<W> order() const {
    return KeyOrder<W>(type, descending, begin_bit, end_bit);
  }
};

#define TP_RUNGS "sort/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::sort

namespace tp::segment_sort {

using sort::Args;

#define TP_RUNGS "sort/rungs_segment.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::segment_sort
