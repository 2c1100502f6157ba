// Compaction: packs the rows that a mask keeps, in order, and unpacks them again. Partition: the dropped rows follow
// the kept ones, in order, too.
//
// The position of a kept row is the number of kept rows before it, which is the exclusive sum of the mask. So
// compaction is a scan and a scatter. The rungs differ in how they scan, and in whether the result of the scan is ever
// written to memory. The fill of dropped rows may go anywhere after the kept ones; counting from the end gives each of
// them a position without knowing the total. In a partition the dropped rows go to their own number after the total.
//
// Unpacking is the transpose, and therefore the gradient: a kept row takes the next packed row, and a dropped row
// becomes zero.
//
// No arithmetic is done, so rows are plain bytes, whatever the dtype.
#pragma once
#include "core/ladder.h"

namespace tp::compact {

enum class Step : int8_t { count, pack, partition, unpack };

struct Args {
  Step step;
  const void* mask;  // boolean [n]
  const void* in;    // pack, partition: [n, row_bytes]; unpack: [packed, row_bytes]
  void* out;         // pack: [packed, row_bytes]; partition, unpack: [n, row_bytes]
  int64_t* count;    // count, pack, partition: how many rows are kept; may be null for pack
  int64_t n, row_bytes;
  // pack: n, in which case dropped rows become `fill`, or the number of kept rows. partition: n. unpack: the number of
  // rows in `in`; rows beyond it are not read but count as zero.
  int64_t packed;
  uint64_t fill;  // an element, repeated to 8 bytes
};

#define TP_RUNGS "compact/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::compact
