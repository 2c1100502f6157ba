// single_pass over contiguous rows (inner == 1).
#pragma once
#include "reduction/reduction.h"

namespace tp::reduction {

void single_pass_rows(const Args&, Context&);

}  // namespace tp::reduction
