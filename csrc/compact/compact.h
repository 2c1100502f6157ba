// Compaction: the rows that a mask keeps, packed in order; and the way back.
//
// Where a kept row goes depends on how many before it are kept: that is the exclusive sum of the mask, so compaction is
// a scan and a scatter. The rungs differ in how the scan is done and in whether its results ever reach memory. What is
// dropped needs no address of its own: any place after the kept rows will do, and counting from the far end gives each
// dropped row one without waiting for the total.
//
// Unpacking is the transpose, and so the gradient: a kept row takes the next packed one, a dropped row is zero.
//
// Nothing is computed, so rows are bytes, whatever the dtype.
#pragma once
#include "core/ladder.h"

namespace tp::compact {

enum class Step : int8_t { count, pack, unpack };

struct Args {
  Step step;
  const void* mask;  // boolean [n]
  const void* in;    // pack: [n, row_bytes]; unpack: [packed, row_bytes]
  void* out;         // pack: [packed, row_bytes]; unpack: [n, row_bytes]
  int64_t* count;    // count, pack: how many rows are kept; may be null for pack
  int64_t n, row_bytes;
  // pack: n, and what is dropped becomes `fill`, or the number of kept rows. unpack: whatever it is, no row beyond is
  // read, and zero stands for it.
  int64_t packed;
  uint64_t fill;  // an element, repeated to 8 bytes
};

#define TP_RUNGS "compact/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::compact
