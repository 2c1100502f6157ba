// single_pass over interleaved rows (inner > 1).
#pragma once
#include "reduction/reduction.h"

namespace tp::reduction {

void single_pass_columns(const Args&, Context&);

}  // namespace tp::reduction
