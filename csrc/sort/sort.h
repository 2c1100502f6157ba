// Sorting (PMPP chapter 13): sorts the keys of each row, and moves payloads with them.
//
// Radix sorts never compare two keys. They partition stably by a digit of the key, and a partition is a scan: the new
// position of a key is the number of keys with a smaller digit plus the number of earlier keys with an equal digit. LSD
// sorts start at the least significant digit, and every pass keeps the order of the earlier passes among equal digits.
// MSD sorts start at the most significant bit, and every bucket becomes a problem of its own. The rungs of §13.4 to
// §13.6 make the writes of a pass coalesce: each block first sorts its own tile, takes more bits per pass, and more
// keys per thread. Comparison sorts merge sorted tiles (§13.7), exchange pairs along a fixed network, or split the row
// at sampled keys (§13.8).
//
// Every rung takes every problem and is stable. Keys are raw words in the order of core/key.h: ascending or descending,
// compared by all bits or by a window of them. Algorithms that are not stable by nature break ties by the original
// index of a key. The payload of a key is a value of 1 to 16 bytes, its original index (argsort), or empty; with an
// empty payload, radix sorts move keys only.
//
// segment_sort does the same for rows of different lengths that are stored end to end. Its difficulty is load balance.
#pragma once
#include "core/key.h"
#include "core/ladder.h"

namespace tp::sort {

struct Args {
  const void* keys;    // [rows, n]
  void* keys_out;      // like keys; null if only the payloads are wanted
  const void* values;  // [rows, n], value_bytes each; null if the payload is the original index, or empty
  void* values_out;    // like values; original indices are int32 or int64, by value_bytes; null if the payload is empty
  int64_t rows, n;
  // segment_sort only, [rows + 1], int64 or int32: row r is keys[offsets[r]] to keys[offsets[r + 1] - 1], of n keys in
  // all. Original indices count from 0 to n, and keys outside all segments are copied.
  const void* offsets;
  bool long_offsets;
  int value_bytes;  // 1, 2, 4, 8 or 16
  KeyType type;
  bool descending;
  int begin_bit, end_bit;  // of a key's image: 0 <= begin_bit <= end_bit <= type.bits

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
