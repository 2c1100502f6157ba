// torch_patterns::subsample2d (Fig. 16.7) and its backward: checks, kernels, Meta, derivatives.
//
// y = f(mean of the window + bias). So the tangent of y is activation_backward, at y, of the mean of the tangent of x
// plus the tangent of the bias. The backward computes s = activation_backward(grad, y), the gradient at f's argument,
// distributes it over the windows (for x) and sums it over each map (for the bias). Both results are linear in s: the
// gradient for s is a mean plus a number per map, and the tangent of the results is the backward of the tangent of s,
// with the identity for f.
#include "torch/activation.h"
#include "torch/avg_pool2d.h"

namespace tp {
namespace {

using pooling::Step;

constexpr const char *op_name = "subsample2d", *backward_name = "subsample2d_backward";
Pattern pattern(op_name, pooling::ladder);

struct Subsample2d {
  static constexpr auto schema =
      "subsample2d(Tensor x, Tensor bias, SymInt[2] size=2, str activation=\"bipolar_sigmoid\", str "
      "algorithm=\"auto\") -> Tensor";
  Tensor x, bias;
  Sizes size;
  Str activation, algorithm;

  TP_DIFFERENTIABLE(Tensor);
  bool keeps(size_t) const { return false; }
  bool keeps_output(size_t) const { return true; }
};

struct Subsample2dBackward {
  static constexpr auto schema =
      "subsample2d_backward(Tensor grad, Tensor y, SymInt[2] size=2, str activation=\"bipolar_sigmoid\", str "
      "algorithm=\"auto\") -> (Tensor, Tensor)";
  Tensor grad, y;
  Sizes size;
  Str activation, algorithm;

  TP_DIFFERENTIABLE(std::tuple<Tensor, Tensor>);
  bool keeps(size_t input) const { return inner().keeps(input); }
  ActivationBackward inner() const { return {grad, y, activation, algorithm}; }
};

// Windows that do not overlap and cover the map.
Windows windows_of(const char* op, const Sizes& size) {
  const SymPair both = pair(op, "size", size);
  constexpr int64_t most = 2147483647;  // so that the sizes of maps cannot overflow
  for (const auto& s : both) {
    TORCH_SYM_CHECK(s.sym_ge(1).sym_and(s.sym_le(most)), op, ": size must be positive and at most ", most, ", got ", s);
  }
  return {both, both, {0, 0}, {1, 1}};
}

}  // namespace

Tensor Subsample2d::kernel() const {
  const Windows windows = windows_of(op_name, size);
  const Activation function = activation_of(op_name, activation);
  check_maps(op_name, "x", x);
  check_floats(op_name, {{"x", x}, {"bias", bias}});
  TORCH_SYM_CHECK(sym_equals(bias.sym_sizes(), {x.sym_size(-3)}), op_name, ": bias must have shape [", x.sym_size(-3),
                  "], one number a map, got ", bias.sym_sizes());
  const SymPair inputs = maps_of(x);
  for (const size_t d : {0, 1}) {
    TORCH_SYM_CHECK((inputs[d] % windows.kernel[d]).sym_eq(0), op_name, ": H x W = ", inputs[0], " x ", inputs[1],
                    " is not a multiple of size ", windows.kernel[0], " x ", windows.kernel[1]);
  }
  const SymPair outputs = count_windows(op_name, windows, inputs);
  Tensor out = empty_maps(x, outputs, x.scalar_type());
  if (is_done(out, pooling::ladder, op_name, algorithm)) return out;
  const auto format = format_of(x);
  const Tensor in = x.contiguous(format), biases = bias.contiguous();
  auto args = pooling_args(op_name, in, format, windows, inputs, outputs);
  args.step = Step::average;
  args.activation = function;
  args.maps = biases.numel();
  args.x = in.const_data_ptr();
  args.bias = biases.const_data_ptr();
  args.y = out.mutable_data_ptr();
  run(pooling::ladder, pooling::choose, op_name, algorithm, in, args);
  return out;
}

std::tuple<Tensor, Tensor> Subsample2dBackward::kernel() const {
  const Windows windows = windows_of(backward_name, size);
  const Activation function = activation_of(backward_name, activation);
  check_maps(backward_name, "grad", grad);
  check_floats(backward_name, {{"grad", grad}, {"y", y}});
  check_same_shape(backward_name, {"grad", grad}, {"y", y});
  const SymPair inputs = {grad.sym_size(-2) * windows.kernel[0], grad.sym_size(-1) * windows.kernel[1]};
  Tensor grad_x = empty_maps(grad, inputs, grad.scalar_type());
  Tensor grad_bias = empty_result({grad.sym_size(-3)}, grad.options());
  if (grad.is_meta()) {
    check_algorithm(pooling::ladder, backward_name, algorithm);
    return {grad_x, grad_bias};
  }
  const auto format = format_of(grad);
  const Tensor g = grad.contiguous(format), value = y.contiguous(format);
  auto args = pooling_args(backward_name, g, format, windows, inputs, maps_of(grad));
  args.step = Step::average_backward;
  args.activation = function;
  args.maps = grad_bias.numel();
  args.grad = g.const_data_ptr();
  args.y = const_cast<void*>(value.const_data_ptr());
  args.grad_x = grad_x.mutable_data_ptr();
  args.grad_bias = grad_bias.mutable_data_ptr();
  run(pooling::ladder, pooling::choose, backward_name, algorithm, g, args);
  return {grad_x, grad_bias};
}

// The output has the dtype of x, which comes from the convolution; the mean and the activation are computed in float32.
template <c10::DispatchKey key>
Tensor cast_bias(const Tensor& x, const Tensor& bias, SymIntArrayRef size, Str activation, Str algorithm) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  return call(Subsample2d{x, bias.to(x.scalar_type()), size.vec(), activation, algorithm});
}

// ---- derivatives

namespace {

// The mean of each window of x, plus one number per map; either may be undefined.
Tensor argument_of(const Tensor& x, const Tensor& bias, const Tensor& like, const Sizes& size, Str algorithm) {
  const Tensor mean = x.defined() ? call(AvgPool2d{x, size, {}, {0, 0}, false, true, algorithm}) : Tensor();
  if (!bias.defined()) return mean;
  return plus(mean, bias.unsqueeze(1).unsqueeze(2).expand_symint(like.sym_sizes()));
}

}  // namespace

Tensors Subsample2d::vjp(const Backward& b) const {
  const auto [grad_x, grad_bias] = call(Subsample2dBackward{b.grad(), b.output(), size, activation, algorithm});
  return {grad_x, grad_bias};
}

Tensors Subsample2d::jvp(const Forward& f) const {
  const Tensor t = argument_of(f.tangent(0), f.tangent(1), f.output(), size, algorithm);
  return {call(ActivationBackward{t, f.output(), activation, algorithm})};
}

Tensors Subsample2dBackward::vjp(const Backward& b) const {
  return inner().pull(argument_of(b.grad(0), b.grad(1), y, size, algorithm), b);
}

Tensors Subsample2dBackward::jvp(const Forward& f) const {
  const Tensor s = inner().jvp(f)[0];
  if (!s.defined()) return {};
  const auto [tangent_x, tangent_bias] = call(Subsample2dBackward{s, y, size, "identity", algorithm});
  return {tangent_x, tangent_bias};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<Subsample2d, Subsample2dBackward>(m); }
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCPU, m) { m.impl(op_name, &cast_bias<c10::DispatchKey::AutocastCPU>); }
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCUDA, m) { m.impl(op_name, &cast_bias<c10::DispatchKey::AutocastCUDA>); }

}  // namespace tp
