// merge_path, step softmax: a file of its own, since compilers take their time.
#pragma once
#include "segmented/segmented.h"

namespace tp::segmented {

void softmax_by_path(const Args&, Context&);

}  // namespace tp::segmented
