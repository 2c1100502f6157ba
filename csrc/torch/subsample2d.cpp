// subsample2d (Fig. 16.7) and its backward operator, whose own derivative is made of avg_pool2d and
// activation_backward.
#include <torch/library.h>

#include "torch/activation.h"
#include "torch/windows.h"

namespace tp {
namespace {

using c10::SymIntArrayRef;
using pooling::Step;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char *name = "subsample2d", *backward_name = "subsample2d_backward";
Pattern pattern(name, pooling::ladder);

Tensor call_forward(const Tensor& x, const Tensor& bias, SymIntArrayRef size, Str activation, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, SymIntArrayRef, Str, Str)>(name);
  return handle.call(x, bias, size, activation, algorithm);
}

std::tuple<Tensor, Tensor> call_backward(const Tensor& grad, const Tensor& y, SymIntArrayRef size, Str activation,
                                         Str algorithm) {
  static const auto handle =
      op<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, SymIntArrayRef, Str, Str)>(backward_name);
  return handle.call(grad, y, size, activation, algorithm);
}

Tensor call_avg_pool2d(const Tensor& x, SymIntArrayRef size, Str algorithm) {
  static const auto handle =
      op<Tensor(const Tensor&, SymIntArrayRef, SymIntArrayRef, SymIntArrayRef, bool, bool, Str)>("avg_pool2d");
  return handle.call(x, size, {}, {0}, false, true, algorithm);
}

// Windows that lie side by side and cover the map.
Windows windows_of(const char* op, SymIntArrayRef size) {
  const SymPair both = pair(op, "size", size);
  for (const auto& s : both) TORCH_CHECK(s >= 1, op, ": size must be positive, got ", s);
  return {both, both, {0, 0}, {1, 1}};
}

SymPair check_forward(const Tensor& x, const Tensor& bias, const Windows& windows, Str activation) {
  activation_of(name, activation);
  check_maps(name, "x", x);
  check_float(name, "x", x);
  check_same_device(name, {{"x", &x}, {"bias", &bias}});
  TORCH_CHECK_TYPE(bias.scalar_type() == x.scalar_type(), name, ": x is ", x.scalar_type(), ", bias is ",
                   bias.scalar_type());
  TORCH_CHECK(bias.dim() == 1 && bias.sym_size(0) == x.sym_size(-3), name, ": bias must have shape [", x.sym_size(-3),
              "], one number a map, got ", bias.sym_sizes());
  const SymPair size = maps_of(x);
  TORCH_CHECK(size[0] % windows.kernel[0] == 0 && size[1] % windows.kernel[1] == 0, name, ": H x W = ", size[0], " x ",
              size[1], " is not a multiple of size ", windows.kernel[0], " x ", windows.kernel[1]);
  return count_windows(name, windows, size);
}

// -> the size of x
SymPair check_backward(const Tensor& grad, const Tensor& y, const Windows& windows, Str activation) {
  activation_of(backward_name, activation);
  check_maps(backward_name, "grad", grad);
  check_float(backward_name, "grad", grad);
  check_beside(backward_name, "grad", grad, "y", y, grad.scalar_type());
  return {grad.sym_size(-2) * windows.kernel[0], grad.sym_size(-1) * windows.kernel[1]};
}

// ---- kernels: CPU and CUDA alike

Tensor forward_kernel(const Tensor& x, const Tensor& bias, SymIntArrayRef size, Str activation, Str algorithm) {
  const Windows windows = windows_of(name, size);
  const SymPair outputs = check_forward(x, bias, windows, activation);
  const auto format = format_of(x);
  const Tensor in = x.contiguous(format), biases = bias.contiguous();
  Tensor out = empty_maps(x, outputs, x.scalar_type());
  auto args = pooling_args(name, in, format, windows, maps_of(x), outputs);
  args.step = Step::average;
  args.activation = activation_of(name, activation);
  args.maps = biases.numel();
  args.x = in.const_data_ptr();
  args.bias = biases.const_data_ptr();
  args.y = out.mutable_data_ptr();
  run(pooling::ladder, pooling::choose, name, algorithm, in, args);
  return out;
}

std::tuple<Tensor, Tensor> backward_kernel(const Tensor& grad, const Tensor& y, SymIntArrayRef size, Str activation,
                                           Str algorithm) {
  const Windows windows = windows_of(backward_name, size);
  const SymPair inputs = check_backward(grad, y, windows, activation);
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

// ---- Meta

Tensor forward_meta(const Tensor& x, const Tensor& bias, SymIntArrayRef size, Str activation, Str algorithm) {
  const SymPair outputs = check_forward(x, bias, windows_of(name, size), activation);
  check_algorithm(pooling::ladder, name, algorithm);
  return empty_maps(x, outputs, x.scalar_type());
}

std::tuple<Tensor, Tensor> backward_meta(const Tensor& grad, const Tensor& y, SymIntArrayRef size, Str activation,
                                         Str algorithm) {
  const SymPair inputs = check_backward(grad, y, windows_of(backward_name, size), activation);
  check_algorithm(pooling::ladder, backward_name, algorithm);
  return {empty_maps(grad, inputs, grad.scalar_type()), at::empty_symint({grad.sym_size(-3)}, grad.options())};
}

// ---- Autograd

struct ForwardFunction : torch::autograd::Function<ForwardFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& bias, const SymPair& size,
                        std::string activation, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    const Tensor y = call_forward(x, bias, size, activation, algorithm);
    ctx->save_for_backward({y});
    ctx->saved_data["size"] = SymIntArrayRef(size);
    ctx->saved_data["activation"] = activation;
    ctx->saved_data["algorithm"] = algorithm;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(5);
    if (!grads[0].defined()) return result;
    const auto& saved = ctx->saved_data;
    const auto size = saved.at("size").toSymIntVector();
    std::tie(result[0], result[1]) =
        call_backward(grads[0], ctx->get_saved_variables()[0], size, saved.at("activation").toStringRef(),
                      saved.at("algorithm").toStringRef());
    return result;
  }
};

struct BackwardFunction : torch::autograd::Function<BackwardFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& grad, const Tensor& y, const SymPair& size,
                               std::string activation, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({grad, y});
    ctx->saved_data["size"] = SymIntArrayRef(size);
    ctx->saved_data["activation"] = activation;
    ctx->saved_data["algorithm"] = algorithm;
    const auto [grad_x, grad_bias] = call_backward(grad, y, size, activation, algorithm);
    return {grad_x, grad_bias};
  }

  // grad_x spreads the gradient at the activation's argument over the windows, grad_bias sums it: both are linear in
  // it.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(5);
    if (!grads[0].defined() && !grads[1].defined()) return result;
    const auto tensors = ctx->get_saved_variables();
    const auto& saved = ctx->saved_data;
    const auto size = saved.at("size").toSymIntVector();
    const std::string algorithm = saved.at("algorithm").toStringRef();
    Tensor into = grads[0].defined() ? call_avg_pool2d(grads[0], size, algorithm) : at::zeros_like(tensors[0]);
    if (grads[1].defined()) into = into + grads[1].unsqueeze(1).unsqueeze(2);
    std::tie(result[0], result[1]) =
        activation_double_backward(into, tensors[0], tensors[1], saved.at("activation").toStringRef(), algorithm);
    return result;
  }
};

Tensor forward_autograd(const Tensor& x, const Tensor& bias, SymIntArrayRef size, Str activation, Str algorithm) {
  return ForwardFunction::apply(x, bias, pair(name, "size", size), std::string(activation), std::string(algorithm));
}

std::tuple<Tensor, Tensor> backward_autograd(const Tensor& grad, const Tensor& y, SymIntArrayRef size, Str activation,
                                             Str algorithm) {
  const auto result = BackwardFunction::apply(grad, y, pair(backward_name, "size", size), std::string(activation),
                                              std::string(algorithm));
  return {result[0], result[1]};
}

// ---- Autocast: in the dtype of x, as it comes from the convolution; the mean and the activation are computed in
// float32

template <c10::DispatchKey key>
Tensor forward_autocast(const Tensor& x, const Tensor& bias, SymIntArrayRef size, Str activation, Str algorithm) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  return call_forward(x, bias.to(x.scalar_type()), size, activation, algorithm);
}

void register_kernels(torch::Library& m) {
  m.impl(name, &forward_kernel);
  m.impl(backward_name, &backward_kernel);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "subsample2d(Tensor x, Tensor bias, SymInt[2] size=2, str activation=\"bipolar_sigmoid\", str "
      "algorithm=\"auto\") "
      "-> Tensor",
      tags);
  m.def(
      "subsample2d_backward(Tensor grad, Tensor y, SymInt[2] size=2, str activation=\"bipolar_sigmoid\", "
      "str algorithm=\"auto\") -> (Tensor, Tensor)",
      tags);
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) {
  m.impl(name, &forward_meta);
  m.impl(backward_name, &backward_meta);
}
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) {
  m.impl(name, &forward_autograd);
  m.impl(backward_name, &backward_autograd);
}
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCPU, m) { m.impl(name, &forward_autocast<c10::DispatchKey::AutocastCPU>); }
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCUDA, m) { m.impl(name, &forward_autocast<c10::DispatchKey::AutocastCUDA>); }

}  // namespace
}  // namespace tp
