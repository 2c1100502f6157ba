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

// The tangent of product(a, b), which is linear in each; a is tensor argument 0, and b number `second`. Undefined if
// neither has a tangent.
template <class Product>
Tensor product_rule(const Forward& f, const Tensor& a, const Tensor& b, Product product, size_t second = 1) {
  const Tensor left = f.tangent(0).defined() ? product(f.tangent(0), b) : Tensor();
  return f.tangent(second).defined() ? plus(left, product(a, f.tangent(second))) : left;
}

// The dtype in which a formula computes for values of x: float32 for half types.
at::ScalarType wide_dtype(const Tensor& x);

}  // namespace tp
