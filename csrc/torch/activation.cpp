// bipolar_sigmoid, tanh, relu, sign, and activation_backward, which serves them all: checks, kernels, Meta,
// derivatives.
//
// Each derivative is a function of the activation's value: with y = f(x), activation_backward(grad, y) is grad * f'(x).
// It is the gradient for x; with a tangent instead of grad it is the tangent of y. Its own derivative with respect to
// grad is activation_backward again; with respect to y it is grad * c * y, where c is -1 for bipolar_sigmoid, -2 for
// tanh, and 0 for the others.
#include "torch/activation.h"

#include <ATen/ATen.h>

#include "layers/layers.h"
#include "torch/checks.h"

namespace tp {

Activation activation_of(const char* pattern, Str name) {
  for (size_t i = 0; i < std::size(activation_names); ++i) {
    if (name == activation_names[i]) return Activation(i);
  }
  std::string names;
  for (const char* known : activation_names) names += std::string(names.empty() ? "" : ", ") + known;
  TORCH_CHECK_VALUE(false, pattern, ": unknown activation '", std::string(name), "'; choose from: ", names);
}

namespace {

Pattern pattern("activation", layers::activations::ladder);

constexpr const char* schemas[] = {nullptr, "bipolar_sigmoid(Tensor x, str algorithm=\"auto\") -> Tensor",
                                   "tanh(Tensor x, str algorithm=\"auto\") -> Tensor",
                                   "relu(Tensor x, str algorithm=\"auto\") -> Tensor",
                                   "sign(Tensor x, str algorithm=\"auto\") -> Tensor"};

// One operator per function.
template <Activation which>
struct Apply {
  static constexpr auto schema = schemas[size_t(which)], op_name = activation_names[size_t(which)];
  Tensor x;
  Str algorithm;

  Tensor kernel() const;
  Tensors vjp(const Backward& b) const { return {call(ActivationBackward{b.grad(), b.output(), op_name, algorithm})}; }
  Tensors jvp(const Forward& f) const {
    return {call(ActivationBackward{f.tangent(), f.output(), op_name, algorithm})};
  }
  bool keeps(size_t) const { return false; }
  bool keeps_output(size_t) const { return true; }
};

constexpr const char* backward_name = "activation_backward";

layers::Args args_of(layers::Step step, Activation f, const char* op, const Tensor& in, Tensor& out) {
  layers::Args args{};
  args.step = step;
  args.activation = f;
  args.dtype = dtype_of_tensor(op, in);
  args.rows = 1;
  args.columns = in.numel();
  args.out = out.mutable_data_ptr();
  return args;
}

template <Activation which>
Tensor Apply<which>::kernel() const {
  check_float(op_name, "x", x);
  Tensor out = empty_result(x.sym_sizes(), x.options());
  if (is_done(out, layers::activations::ladder, op_name, algorithm)) return out;
  const Tensor in = x.contiguous();
  layers::Args args = args_of(layers::Step::activation, which, op_name, in, out);
  args.x = in.const_data_ptr();
  run(layers::activations::ladder, layers::activations::choose, op_name, algorithm, in, args);
  return out;
}

}  // namespace

Tensor ActivationBackward::kernel() const {
  check_float(backward_name, "grad", grad);
  check_alike(backward_name, {"grad", grad}, {"y", y});
  check_same_shape(backward_name, {"grad", grad}, {"y", y});
  const Activation f = activation_of(backward_name, activation);
  Tensor out = empty_result(grad.sym_sizes(), grad.options());
  if (is_done(out, layers::activations::ladder, backward_name, algorithm)) return out;
  const Tensor g = grad.contiguous(), value = y.contiguous();
  layers::Args args = args_of(layers::Step::activation_backward, f, backward_name, g, out);
  args.grad = g.const_data_ptr();
  args.y = value.const_data_ptr();
  run(layers::activations::ladder, layers::activations::choose, backward_name, algorithm, g, args);
  return out;
}

// f'(x) = (1 - y^2) / 2 or 1 - y^2; this is the factor of y in its derivative with respect to y.
int ActivationBackward::curvature() const {
  const Activation f = activation_of(backward_name, activation);
  return f == Activation::bipolar_sigmoid ? -1 : f == Activation::tanh ? -2 : 0;
}

Tensors ActivationBackward::pull(const Tensor& into, const Backward& b) const {
  const int c = curvature();
  Tensors grads(2);
  if (b.wants(0)) grads[0] = call(ActivationBackward{into, y, activation, algorithm});
  if (b.wants(1)) grads[1] = c ? into * grad * y * c : at::zeros_like(y);
  return grads;
}

Tensors ActivationBackward::jvp(const Forward& f) const {
  Tensor t;
  const int c = curvature();
  if (f.tangent(0).defined()) t = call(ActivationBackward{f.tangent(0), y, activation, algorithm});
  if (f.tangent(1).defined() && c) t = plus(t, f.tangent(1) * grad * y * c);
  return {t};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  define<Apply<Activation::bipolar_sigmoid>, Apply<Activation::tanh>, Apply<Activation::relu>, Apply<Activation::sign>,
         ActivationBackward>(m);
}

}  // namespace tp
