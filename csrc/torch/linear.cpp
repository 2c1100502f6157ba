// torch_patterns::linear, linear_dgrad, linear_wgrad: checks, kernels, Meta, derivatives.
//
// The three matrix products of a fully connected layer are derivatives of each other: linear in x and weight, dgrad in
// grad and weight, wgrad in grad and x. So a gradient calls the other two products, and a tangent calls the same
// product once for each argument that has a tangent. Derivatives of every order therefore exist in both modes.
#include "layers/linear.h"

#include <ATen/ATen.h>

#include "torch/checks.h"
#include "torch/gradient.h"

namespace tp {
namespace {

Pattern linear_pattern("linear", linear::ladder);

struct Linear {
  static constexpr auto schema = "linear(Tensor x, Tensor weight, Tensor? bias=None, str algorithm=\"auto\") -> Tensor";
  Tensor x, weight;
  OptionalTensor bias;
  Str algorithm;

  TP_DIFFERENTIABLE(Tensor);
  bool keeps(size_t input) const { return input != 2; }
  Autocast autocast() const { return Autocast::lower; }
};

struct LinearDgrad {
  static constexpr auto schema = "linear_dgrad(Tensor grad, Tensor weight, str algorithm=\"auto\") -> Tensor";
  Tensor grad, weight;
  Str algorithm;

  TP_LINEAR(Tensor)
};

struct LinearWgrad {
  static constexpr auto schema = "linear_wgrad(Tensor grad, Tensor x, str algorithm=\"auto\") -> Tensor";
  Tensor grad, x;
  Str algorithm;

  TP_LINEAR(Tensor)
};

// ---- checks

// Checks x [.., k] against dimension `dim` of weight [out, in], and returns the shape of the product.
Sizes check_product(const char* op, const Named& x, const Tensor& weight, int64_t dim) {
  check_floats(op, {x, {"weight", weight}});
  TORCH_CHECK(weight.dim() == 2, op, ": weight must be [out, in], got shape ", weight.sym_sizes());
  const c10::SymBool fits = x.tensor.dim() >= 1 ? x.tensor.sym_size(-1).sym_eq(weight.sym_size(dim)) : false;
  TORCH_SYM_CHECK(fits, op, ": the last dimension of ", x.name, " must be ", weight.sym_size(dim), " for weight ",
                  weight.sym_sizes(), ", got shape ", x.tensor.sym_sizes());
  Sizes shape = x.tensor.sym_sizes().vec();
  shape.back() = weight.sym_size(1 - dim);
  return shape;
}

// ---- kernels: CPU and CUDA alike

// out = A B (+ bias), where A and B are contiguous tensors or their transposes.
Tensor product(const char* op, const Sizes& shape, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
               const OptionalTensor& bias, Str algorithm) {
  Tensor out = empty_result(shape, a.options());
  if (is_done(out, linear::ladder, op, algorithm)) return out;
  const Tensor left = a.contiguous(), right = b.contiguous(), offset = bias ? bias->contiguous() : Tensor();
  const auto columns = [](const Tensor& t) { return t.size(-1); };
  const auto rows = [](const Tensor& t) { return c10::multiply_integers(t.sizes().begin(), t.sizes().end() - 1); };
  const auto matrix = [&](const Tensor& t, bool transpose) {
    return transpose ? Matrix{t.const_data_ptr(), 1, columns(t), 0} : Matrix{t.const_data_ptr(), columns(t), 1, 0};
  };
  linear::Args args{};
  Gemm& p = args.product;
  p.dtype = dtype_of_tensor(op, a);
  p.batch = 1;
  p.rows = transpose_a ? columns(left) : rows(left);
  p.inner = transpose_a ? rows(left) : columns(left);
  p.cols = transpose_b ? rows(right) : columns(right);
  p.a = matrix(left, transpose_a);
  p.b = matrix(right, transpose_b);
  p.c = out.mutable_data_ptr();
  args.bias = data_or_null(offset);
  run(linear::ladder, linear::choose, op, algorithm, left, args);
  return out;
}

}  // namespace

Tensor Linear::kernel() const {
  const Sizes shape = check_product("linear", {"x", x}, weight, 1);
  if (bias) {
    check_floats("linear", {{"x", x}, {"bias", *bias}});
    TORCH_SYM_CHECK(sym_equals(bias->sym_sizes(), weight.sym_sizes().slice(0, 1)), "linear: bias must have shape [",
                    weight.sym_size(0), "] for weight ", weight.sym_sizes(), ", got ", bias->sym_sizes());
  }
  return product("linear", shape, x, false, weight, true, bias, algorithm);
}

Tensor LinearDgrad::kernel() const {
  const Sizes shape = check_product("linear_dgrad", {"grad", grad}, weight, 0);
  return product("linear_dgrad", shape, grad, false, weight, false, {}, algorithm);
}

Tensor LinearWgrad::kernel() const {
  check_floats("linear_wgrad", {{"grad", grad}, {"x", x}});
  const auto rows = [](const Tensor& t) { return t.sym_sizes().slice(0, t.dim() > 0 ? size_t(t.dim() - 1) : 0); };
  TORCH_SYM_CHECK(grad.dim() >= 1 && x.dim() >= 1 ? sym_equals(rows(grad), rows(x)) : c10::SymBool(false),
                  "linear_wgrad: grad and x must agree in all dimensions but the last, got shapes ", grad.sym_sizes(),
                  " and ", x.sym_sizes());
  return product("linear_wgrad", {grad.sym_size(-1), x.sym_size(-1)}, grad, true, x, false, {}, algorithm);
}

// ---- derivatives

Tensors Linear::vjp(const Backward& b) const {
  const Tensor& g = b.grad();
  Tensors grads(3);
  if (b.wants(0)) grads[0] = call(LinearDgrad{g, weight, algorithm});
  if (b.wants(1)) grads[1] = call(LinearWgrad{g, x, algorithm});
  if (b.wants(2)) grads[2] = reduce_to(g, b.sizes(2));
  return grads;
}

Tensors LinearDgrad::vjp(const Backward& b) const {
  const Tensor& g = b.grad();
  Tensors grads(2);
  if (b.wants(0)) grads[0] = call(Linear{g, weight, {}, algorithm});
  if (b.wants(1)) grads[1] = call(LinearWgrad{grad, g, algorithm});
  return grads;
}

Tensors LinearWgrad::vjp(const Backward& b) const {
  const Tensor& g = b.grad();
  Tensors grads(2);
  if (b.wants(0)) grads[0] = call(Linear{x, g, {}, algorithm});
  if (b.wants(1)) grads[1] = call(LinearDgrad{grad, g, algorithm});
  return grads;
}

Tensors Linear::jvp(const Forward& f) const {
  const Tensor t = tangent_of_linear(Linear{x, weight, {}, algorithm}, f);
  return {f.tangent(2).defined() ? plus(t, f.tangent(2).expand_symint(f.output().sym_sizes())) : t};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<Linear, LinearDgrad, LinearWgrad>(m); }

}  // namespace tp
