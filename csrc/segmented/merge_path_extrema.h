// merge_path for all but sums and products: a file of their own, since compilers take their time.
#pragma once
#include "segmented/segmented.h"

namespace tp::segmented {

void extrema_by_path(const Args&, Context&);

}  // namespace tp::segmented
