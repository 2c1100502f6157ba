// decoupled_lookback for max, min and the bitwise operators, in a separate file so that the compiler can work on both
// in parallel.
#pragma once
#include "segmented/segmented.h"

namespace tp::segmented {

void other_ops_by_lookback(const Args&, Context&);

}  // namespace tp::segmented
