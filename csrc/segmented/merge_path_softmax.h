// merge_path, step softmax, in a separate file so that the compiler can work on all steps in parallel.
#pragma once
#include "segmented/segmented.h"

namespace tp::segmented {

void softmax_by_path(const Args&, Context&);

}  // namespace tp::segmented
