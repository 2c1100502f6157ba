// linear with its two gradients.
//
// The three matrix products of a fully connected layer are each other's derivatives: linear in x and weight, dgrad in
// grad and weight, wgrad in grad and x. So every order of derivative is one of them again.
#include "layers/linear.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include "torch/checks.h"

namespace tp {
namespace {

using c10::SymInt;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;

Pattern linear_pattern("linear", linear::ladder);

Tensor call_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, const OptionalTensor&, Str)>("linear");
  return handle.call(x, weight, bias, algorithm);
}
Tensor call_dgrad(const Tensor& grad, const Tensor& weight, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, Str)>("linear_dgrad");
  return handle.call(grad, weight, algorithm);
}
Tensor call_wgrad(const Tensor& grad, const Tensor& x, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, Str)>("linear_wgrad");
  return handle.call(grad, x, algorithm);
}
// ---- checks, which give the shape of the result

std::vector<SymInt> with_last(const Tensor& x, const SymInt& last) {
  auto shape = x.sym_sizes().vec();
  shape.back() = last;
  return shape;
}

// x [.., k] against dimension `dim` of weight [out, in].
void check_product(const char* op, const Named& x, const Tensor& weight, int64_t dim) {
  check_floats(op, {x, {"weight", weight}});
  TORCH_CHECK(weight.dim() == 2, op, ": weight must be [out, in], got shape ", weight.sym_sizes());
  TORCH_CHECK(x.tensor.dim() >= 1 && x.tensor.sym_size(-1) == weight.sym_size(dim), op, ": the last dimension of ",
              x.name, " must be ", weight.sym_size(dim), " for weight ", weight.sym_sizes(), ", got shape ",
              x.tensor.sym_sizes());
}

std::vector<SymInt> linear_shape(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  check_product("linear", {"x", x}, weight, 1);
  if (bias) {
    check_floats("linear", {{"x", x}, {"bias", *bias}});
    TORCH_CHECK(bias->dim() == 1 && bias->sym_size(0) == weight.sym_size(0), "linear: bias must have shape [",
                weight.sym_size(0), "] for weight ", weight.sym_sizes(), ", got ", bias->sym_sizes());
  }
  return with_last(x, weight.sym_size(0));
}

std::vector<SymInt> dgrad_shape(const Tensor& grad, const Tensor& weight) {
  check_product("linear_dgrad", {"grad", grad}, weight, 0);
  return with_last(grad, weight.sym_size(1));
}

std::vector<SymInt> wgrad_shape(const Tensor& grad, const Tensor& x) {
  check_floats("linear_wgrad", {{"grad", grad}, {"x", x}});
  TORCH_CHECK(grad.dim() >= 1 && grad.dim() == x.dim() && with_last(grad, 0) == with_last(x, 0),
              "linear_wgrad: grad and x must agree in all dimensions but the last, got shapes ", grad.sym_sizes(),
              " and ", x.sym_sizes());
  return {grad.sym_size(-1), x.sym_size(-1)};
}

// ---- kernels: CPU and CUDA alike

// out = A B (+ bias), where A and B are contiguous tensors or their transposes.
Tensor product(const char* op, const std::vector<SymInt>& shape, const Tensor& a, bool transpose_a, const Tensor& b,
               bool transpose_b, const OptionalTensor& bias, Str algorithm) {
  const Tensor left = a.contiguous(), right = b.contiguous(), offset = bias ? bias->contiguous() : Tensor();
  Tensor out = at::empty_symint(shape, a.options());
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
  args.bias = offset.defined() ? offset.const_data_ptr() : nullptr;
  if (out.numel() == 0) {
    check_algorithm(linear::ladder, op, algorithm);
  } else {
    run(linear::ladder, linear::choose, op, algorithm, left, args);
  }
  return out;
}

Tensor linear_kernel(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, Str algorithm) {
  return product("linear", linear_shape(x, weight, bias), x, false, weight, true, bias, algorithm);
}

Tensor dgrad_kernel(const Tensor& grad, const Tensor& weight, Str algorithm) {
  return product("linear_dgrad", dgrad_shape(grad, weight), grad, false, weight, false, {}, algorithm);
}

Tensor wgrad_kernel(const Tensor& grad, const Tensor& x, Str algorithm) {
  return product("linear_wgrad", wgrad_shape(grad, x), grad, true, x, false, {}, algorithm);
}

// ---- Meta

Tensor linear_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, Str algorithm) {
  check_algorithm(linear::ladder, "linear", algorithm);
  return at::empty_symint(linear_shape(x, weight, bias), x.options());
}
Tensor dgrad_meta(const Tensor& grad, const Tensor& weight, Str algorithm) {
  check_algorithm(linear::ladder, "linear_dgrad", algorithm);
  return at::empty_symint(dgrad_shape(grad, weight), grad.options());
}
Tensor wgrad_meta(const Tensor& grad, const Tensor& x, Str algorithm) {
  check_algorithm(linear::ladder, "linear_wgrad", algorithm);
  return at::empty_symint(wgrad_shape(grad, x), grad.options());
}
// ---- Autograd

// The sum over all dimensions but the last.
Tensor sum_rows(const Tensor& g) {
  if (g.dim() == 1) return g.clone();
  std::vector<int64_t> dims(size_t(g.dim() - 1));
  for (size_t d = 0; d < dims.size(); ++d) dims[d] = int64_t(d);
  return g.sum(dims);
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                        std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({x, weight});
    ctx->saved_data["algorithm"] = algorithm;
    ctx->saved_data["bias"] = bias.has_value();
    return call_linear(x, weight, bias, algorithm);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(4);
    const Tensor& g = grads[0];
    if (!g.defined()) return result;
    const auto tensors = ctx->get_saved_variables();
    const std::string algorithm = ctx->saved_data.at("algorithm").toStringRef();
    if (ctx->needs_input_grad(0)) result[0] = call_dgrad(g, tensors[1], algorithm);
    if (ctx->needs_input_grad(1)) result[1] = call_wgrad(g, tensors[0], algorithm);
    if (ctx->saved_data.at("bias").toBool() && ctx->needs_input_grad(2)) result[2] = sum_rows(g);
    return result;
  }
};

struct DgradFunction : torch::autograd::Function<DgradFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& grad, const Tensor& weight, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({grad, weight});
    ctx->saved_data["algorithm"] = algorithm;
    return call_dgrad(grad, weight, algorithm);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return variable_list(3);
    const auto tensors = ctx->get_saved_variables();
    const std::string algorithm = ctx->saved_data.at("algorithm").toStringRef();
    return {call_linear(grads[0], tensors[1], {}, algorithm), call_wgrad(tensors[0], grads[0], algorithm), Tensor()};
  }
};

struct WgradFunction : torch::autograd::Function<WgradFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& grad, const Tensor& x, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({grad, x});
    ctx->saved_data["algorithm"] = algorithm;
    return call_wgrad(grad, x, algorithm);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return variable_list(3);
    const auto tensors = ctx->get_saved_variables();
    const std::string algorithm = ctx->saved_data.at("algorithm").toStringRef();
    return {call_linear(tensors[1], grads[0], {}, algorithm), call_dgrad(tensors[0], grads[0], algorithm), Tensor()};
  }
};

Tensor linear_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, Str algorithm) {
  return LinearFunction::apply(x, weight, bias, std::string(algorithm));
}
Tensor dgrad_autograd(const Tensor& grad, const Tensor& weight, Str algorithm) {
  return DgradFunction::apply(grad, weight, std::string(algorithm));
}
Tensor wgrad_autograd(const Tensor& grad, const Tensor& x, Str algorithm) {
  return WgradFunction::apply(grad, x, std::string(algorithm));
}
// ---- Autocast: in the autocast dtype

template <c10::DeviceType device, c10::DispatchKey key>
Tensor linear_autocast(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, Str algorithm) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const auto dtype = at::autocast::get_autocast_dtype(device);
  const auto cast = [&](const Tensor& t) { return at::autocast::cached_cast(dtype, t, device); };
  return call_linear(cast(x), cast(weight), bias ? OptionalTensor(cast(*bias)) : bias, algorithm);
}

template <c10::DeviceType device, c10::DispatchKey key>
void register_autocast(torch::Library& m) {
  m.impl("linear", &linear_autocast<device, key>);
}

void register_kernels(torch::Library& m) {
  m.impl("linear", &linear_kernel);
  m.impl("linear_dgrad", &dgrad_kernel);
  m.impl("linear_wgrad", &wgrad_kernel);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def("linear(Tensor x, Tensor weight, Tensor? bias=None, str algorithm=\"auto\") -> Tensor", tags);
  m.def("linear_dgrad(Tensor grad, Tensor weight, str algorithm=\"auto\") -> Tensor", tags);
  m.def("linear_wgrad(Tensor grad, Tensor x, str algorithm=\"auto\") -> Tensor", tags);
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) {
  m.impl("linear", &linear_meta);
  m.impl("linear_dgrad", &dgrad_meta);
  m.impl("linear_wgrad", &wgrad_meta);
}
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) {
  m.impl("linear", &linear_autograd);
  m.impl("linear_dgrad", &dgrad_autograd);
  m.impl("linear_wgrad", &wgrad_autograd);
}
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCPU, m) { register_autocast<at::kCPU, c10::DispatchKey::AutocastCPU>(m); }
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCUDA, m) { register_autocast<at::kCUDA, c10::DispatchKey::AutocastCUDA>(m); }

}  // namespace
}  // namespace tp
