// What derivatives of several operators need.
#pragma once
#include "torch/operator.h"

namespace tp {

// `g` summed down to `sizes`, which broadcast to its own, by the library's reduction: the same bits on any number of
// threads.
Tensor reduce_to(const Tensor& g, SymIntArrayRef sizes);

// Whether a formula may take a way that cannot be differentiated, traced or batched: no graph is recorded, and these
// are tensors with data and without tangents.
bool is_plain(std::initializer_list<Tensor> tensors);

// The tangent of product(a, b), linear in each: a and b are the first two tensor arguments. Undefined if neither has
// one.
template <class Product>
Tensor product_rule(const Forward& f, const Tensor& a, const Tensor& b, Product product) {
  const Tensor left = f.tangent(0).defined() ? product(f.tangent(0), b) : Tensor();
  return f.tangent(1).defined() ? plus(left, product(a, f.tangent(1))) : left;
}

// The dtype that a formula computes in for values of x: float32 for half types.
at::ScalarType wide_dtype(const Tensor& x);

}  // namespace tp
