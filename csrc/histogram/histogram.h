// Histogram: how many elements fall in each bin.
//
// Every element adds one to a counter that its value selects, so the pattern consists of writes, and any number of
// threads may add to the same counter at once. Atomic additions make that correct, and privatization makes it fast:
// each block counts in its own copy in shared memory, and the copies are added at the end. Integer sums do not depend
// on the order, so every rung is deterministic.
//
// Without a range, an integer falls in the bin of its own value. With a range, and for floats, bins are uniform: bin i
// of [min, max] includes edge i and excludes edge i + 1; the last bin includes max. bins.h defines the edges to the
// last bit. NaN and elements outside the range are not counted.
#pragma once
#include <limits>

#include "core/ladder.h"

namespace tp::histogram {

struct Args {
  const void* in;   // [n]
  int64_t* counts;  // [bins], overwritten
  int64_t n, bins;
  DType dtype;
  bool uniform;  // uniform bins of [min, max]; always for floats
  // The range of uniform bins. NaN means the least or greatest finite element.
  double min = std::numeric_limits<double>::quiet_NaN(), max = std::numeric_limits<double>::quiet_NaN();
};

#define TP_RUNGS "histogram/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::histogram
