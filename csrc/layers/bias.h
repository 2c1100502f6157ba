// The bias of a fully connected layer on the host, added to a product that is there already.
#pragma once
#include "core/context.h"

namespace tp::linear {

// p.c += bias in every row, for the dtypes that products accumulate in: float32 and float64.
void add_bias(const Gemm& p, const void* bias, Context& context);

}  // namespace tp::linear
