// Adds the bias of a fully connected layer, on the host, to a product that has been computed.
#pragma once
#include "core/context.h"

namespace tp::linear {

// p.c += bias in every row, for float32 and float64, the dtypes in which products accumulate.
void add_bias(const Gemm& p, const void* bias, Context& context);

}  // namespace tp::linear
