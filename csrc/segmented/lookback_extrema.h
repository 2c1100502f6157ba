// decoupled_lookback for max, min and the bitwise operators: a file of their own, since compilers take their time.
#pragma once
#include "segmented/segmented.h"

namespace tp::segmented {

void extrema_by_lookback(const Args&, Context&);

}  // namespace tp::segmented
