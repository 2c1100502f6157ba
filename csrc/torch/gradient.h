// Shared by the derivatives of several operators.
#pragma once
#include "torch/operator.h"

namespace tp {

// Sums `g` to `sizes`, which broadcast to its shape, by the library's reduction, so any number of threads gives the
// same bits.
Tensor reduce_to(const Tensor& g, SymIntArrayRef sizes);

// Tells whether a formula may use code that cannot be differentiated, traced or batched: no graph is recorded, and
// these tensors have data and no tangents.
bool is_plain(std::initializer_list<Tensor> tensors);

// The dtype in which a formula computes for values of x: float32 for half types.
at::ScalarType wide_dtype(const Tensor& x);

}  // namespace tp
