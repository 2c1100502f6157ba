// Histogram: how many elements fall in each bin.
//
// Every element adds one to a counter that its value picks, so the pattern is all writing: any number of threads may
// want the same counter at once. Atomic additions make that right, and privatization makes it fast: each block counts
// in a copy of its own, near by, and the copies are added up at the end. Integers add up to the same sum in any order,
// so every rung is deterministic.
//
// An integer falls in the bin of its own number. Given a range, or for floats, the bins are uniform: bin i of [min,
// max] reaches from edge i up to, but not including, edge i + 1; the last one includes max. bins.h says where the edges
// lie, to the bit. NaN and what lies outside are not counted.
#pragma once
#include <limits>

#include "core/ladder.h"

namespace tp::histogram {

struct Args {
  const void* in;   // [n]
  int64_t* counts;  // [bins], to be overwritten
  int64_t n, bins;
  DType dtype;
  bool uniform;  // uniform bins of [min, max]; always so for floats
  // Of uniform bins; NaN: the least or greatest of the finite elements.
  double min = std::numeric_limits<double>::quiet_NaN(), max = std::numeric_limits<double>::quiet_NaN();
};

#define TP_RUNGS "histogram/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::histogram
