// merge_path for all operators except sums and products, in a separate file so that the compiler can work on both in
// parallel.
#pragma once
#include "segmented/segmented.h"

namespace tp::segmented {

void other_ops_by_path(const Args&, Context&);

}  // namespace tp::segmented
