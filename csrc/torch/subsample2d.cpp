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

SymPair check_forward(const Subsample2d& p, const Windows& windows) {
  const Tensor &x = p.x, &bias = p.bias;
  activation_of(op_name, p.activation);
  check_maps(op_name, "x", x);
  check_float(op_name, "x", x);
  check_same_device(op_name, {{"x", &x}, {"bias", &bias}});
  TORCH_CHECK_TYPE(bias.scalar_type() == x.scalar_type(), op_name, ": x is ", x.scalar_type(), ", bias is ",
                   bias.scalar_type());
  TORCH_SYM_CHECK(same_sizes(bias.sym_sizes(), {x.sym_size(-3)}), op_name, ": bias must have shape [", x.sym_size(-3),
                  "], one number a map, got ", bias.sym_sizes());
  const SymPair size = maps_of(x);
  for (const size_t d : {0, 1}) {
    TORCH_SYM_CHECK((size[d] % windows.kernel[d]).sym_eq(0), op_name, ": H x W = ", size[0], " x ", size[1],
                    " is not a multiple of size ", windows.kernel[0], " x ", windows.kernel[1]);
  }
  return count_windows(op_name, windows, size);
}

// -> the size of x
SymPair check_backward(const Subsample2dBackward& p, const Windows& windows) {
  activation_of(backward_name, p.activation);
  check_maps(backward_name, "grad", p.grad);
  check_float(backward_name, "grad", p.grad);
  check_beside(backward_name, "grad", p.grad, "y", p.y, p.grad.scalar_type());
  return {p.grad.sym_size(-2) * windows.kernel[0], p.grad.sym_size(-1) * windows.kernel[1]};
}

}  // namespace

Tensor Subsample2d::kernel() const {
  const Windows windows = windows_of(op_name, size);
  const SymPair outputs = check_forward(*this, windows);
  const auto format = format_of(x);
  const Tensor in = x.contiguous(format), biases = bias.contiguous();
  Tensor out = empty_maps(x, outputs, x.scalar_type());
  auto args = pooling_args(op_name, in, format, windows, maps_of(x), outputs);
  args.step = Step::average;
  args.activation = activation_of(op_name, activation);
  args.maps = biases.numel();
  args.x = in.const_data_ptr();
  args.bias = biases.const_data_ptr();
  args.y = out.mutable_data_ptr();
  run(pooling::ladder, pooling::choose, op_name, algorithm, in, args);
  return out;
}

std::tuple<Tensor, Tensor> Subsample2dBackward::kernel() const {
  const Windows windows = windows_of(backward_name, size);
  const SymPair inputs = check_backward(*this, windows);
  const auto format = format_of(grad);
  const Tensor g = grad.contiguous(format), value = y.contiguous(format);
  Tensor grad_x = empty_maps(grad, inputs, grad.scalar_type()), grad_bias = at::empty({grad.size(-3)}, grad.options());
  auto args = pooling_args(backward_name, g, format, windows, inputs, maps_of(grad));
  args.step = Step::average_backward;
  args.activation = activation_of(backward_name, activation);
  args.maps = grad_bias.numel();
  args.grad = g.const_data_ptr();
  args.y = const_cast<void*>(value.const_data_ptr());
  args.grad_x = grad_x.mutable_data_ptr();
  args.grad_bias = grad_bias.mutable_data_ptr();
  run(pooling::ladder, pooling::choose, backward_name, algorithm, g, args);
  return {grad_x, grad_bias};
}

Tensor Subsample2d::meta() const {
  const SymPair outputs = check_forward(*this, windows_of(op_name, size));
  check_algorithm(pooling::ladder, op_name, algorithm);
  return empty_maps(x, outputs, x.scalar_type());
}

std::tuple<Tensor, Tensor> Subsample2dBackward::meta() const {
  const SymPair inputs = check_backward(*this, windows_of(backward_name, size));
  check_algorithm(pooling::ladder, backward_name, algorithm);
  return {empty_maps(grad, inputs, grad.scalar_type()), at::empty_symint({grad.sym_size(-3)}, grad.options())};
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
