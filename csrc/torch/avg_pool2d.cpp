// avg_pool2d and its backward, which are transposes of each other: so every order of derivative is one of them.
#include <torch/library.h>

#include "torch/windows.h"

namespace tp {
namespace {

using c10::SymIntArrayRef;
using pooling::Step;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char *name = "avg_pool2d", *backward_name = "avg_pool2d_backward";
Pattern pattern(name, pooling::ladder);

Tensor call_forward(const Tensor& x, const Windows& w, Str algorithm) {
  static const auto handle =
      op<Tensor(const Tensor&, SymIntArrayRef, SymIntArrayRef, SymIntArrayRef, bool, bool, Str)>(name);
  return handle.call(x, w.kernel, w.stride, w.padding, w.ceil_mode, w.count_include_pad, algorithm);
}

Tensor call_backward(const Tensor& grad, const SymPair& size, const Windows& w, Str algorithm) {
  static const auto handle =
      op<Tensor(const Tensor&, SymIntArrayRef, SymIntArrayRef, SymIntArrayRef, SymIntArrayRef, bool, bool, Str)>(
          backward_name);
  return handle.call(grad, size, w.kernel, w.stride, w.padding, w.ceil_mode, w.count_include_pad, algorithm);
}

Windows windows_of(const char* op, SymIntArrayRef kernel, SymIntArrayRef stride, SymIntArrayRef padding, bool ceil_mode,
                   bool count_include_pad) {
  return {pair(op, "kernel_size", kernel),
          pair(op, "stride", stride, kernel),
          pair(op, "padding", padding),
          {1, 1},
          ceil_mode,
          count_include_pad};
}

SymPair check_forward(const Tensor& x, const Windows& windows) {
  check_maps(name, "x", x);
  check_float(name, "x", x);
  return count_windows(name, windows, maps_of(x));
}

void check_backward(const Tensor& grad, const SymPair& size, const Windows& windows) {
  check_maps(backward_name, "grad", grad);
  check_float(backward_name, "grad", grad);
  check_shape(backward_name, "grad", grad, count_windows(backward_name, windows, size));
}

// ---- kernels: CPU and CUDA alike

Tensor forward_kernel(const Tensor& x, SymIntArrayRef kernel, SymIntArrayRef stride, SymIntArrayRef padding,
                      bool ceil_mode, bool count_include_pad, Str algorithm) {
  const Windows windows = windows_of(name, kernel, stride, padding, ceil_mode, count_include_pad);
  const SymPair outputs = check_forward(x, windows);
  const auto format = format_of(x);
  const Tensor in = x.contiguous(format);
  Tensor out = empty_maps(x, outputs, x.scalar_type());
  auto args = pooling_args(name, in, format, windows, maps_of(x), outputs);
  args.step = Step::average;
  args.x = in.const_data_ptr();
  args.y = out.mutable_data_ptr();
  run(pooling::ladder, pooling::choose, name, algorithm, in, args);
  return out;
}

Tensor backward_kernel(const Tensor& grad, SymIntArrayRef input_size, SymIntArrayRef kernel, SymIntArrayRef stride,
                       SymIntArrayRef padding, bool ceil_mode, bool count_include_pad, Str algorithm) {
  const Windows windows = windows_of(backward_name, kernel, stride, padding, ceil_mode, count_include_pad);
  const SymPair size = pair(backward_name, "input_size", input_size);
  check_backward(grad, size, windows);
  const auto format = format_of(grad);
  const Tensor g = grad.contiguous(format);
  Tensor out = empty_maps(grad, size, grad.scalar_type());
  auto args = pooling_args(backward_name, g, format, windows, size, maps_of(grad));
  args.step = Step::average_backward;
  args.grad = g.const_data_ptr();
  args.grad_x = out.mutable_data_ptr();
  run(pooling::ladder, pooling::choose, backward_name, algorithm, g, args);
  return out;
}

// ---- Meta

Tensor forward_meta(const Tensor& x, SymIntArrayRef kernel, SymIntArrayRef stride, SymIntArrayRef padding,
                    bool ceil_mode, bool count_include_pad, Str algorithm) {
  const Windows windows = windows_of(name, kernel, stride, padding, ceil_mode, count_include_pad);
  check_algorithm(pooling::ladder, name, algorithm);
  return empty_maps(x, check_forward(x, windows), x.scalar_type());
}

Tensor backward_meta(const Tensor& grad, SymIntArrayRef input_size, SymIntArrayRef kernel, SymIntArrayRef stride,
                     SymIntArrayRef padding, bool ceil_mode, bool count_include_pad, Str algorithm) {
  const Windows windows = windows_of(backward_name, kernel, stride, padding, ceil_mode, count_include_pad);
  const SymPair size = pair(backward_name, "input_size", input_size);
  check_backward(grad, size, windows);
  check_algorithm(pooling::ladder, backward_name, algorithm);
  return empty_maps(grad, size, grad.scalar_type());
}

// ---- Autograd

struct ForwardFunction : torch::autograd::Function<ForwardFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Windows& windows, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    check_maps(name, "x", x);
    ctx->saved_data["size"] = SymIntArrayRef(maps_of(x));
    ctx->saved_data["algorithm"] = algorithm;
    windows.save(ctx->saved_data);
    return call_forward(x, windows, algorithm);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return variable_list(3);
    const auto& saved = ctx->saved_data;
    const auto size = saved.at("size").toSymIntVector();
    return {call_backward(grads[0], {size[0], size[1]}, Windows::load(saved), saved.at("algorithm").toStringRef()),
            Tensor(), Tensor()};
  }
};

struct BackwardFunction : torch::autograd::Function<BackwardFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& grad, const SymPair& size, const Windows& windows,
                        std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->saved_data["algorithm"] = algorithm;
    windows.save(ctx->saved_data);
    return call_backward(grad, size, windows, algorithm);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return variable_list(4);
    const auto& saved = ctx->saved_data;
    return {call_forward(grads[0], Windows::load(saved), saved.at("algorithm").toStringRef()), Tensor(), Tensor(),
            Tensor()};
  }
};

Tensor forward_autograd(const Tensor& x, SymIntArrayRef kernel, SymIntArrayRef stride, SymIntArrayRef padding,
                        bool ceil_mode, bool count_include_pad, Str algorithm) {
  const Windows windows = windows_of(name, kernel, stride, padding, ceil_mode, count_include_pad);
  return ForwardFunction::apply(x, windows, std::string(algorithm));
}

Tensor backward_autograd(const Tensor& grad, SymIntArrayRef input_size, SymIntArrayRef kernel, SymIntArrayRef stride,
                         SymIntArrayRef padding, bool ceil_mode, bool count_include_pad, Str algorithm) {
  const Windows windows = windows_of(backward_name, kernel, stride, padding, ceil_mode, count_include_pad);
  return BackwardFunction::apply(grad, pair(backward_name, "input_size", input_size), windows, std::string(algorithm));
}

void register_kernels(torch::Library& m) {
  m.impl(name, &forward_kernel);
  m.impl(backward_name, &backward_kernel);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "avg_pool2d(Tensor x, SymInt[2] kernel_size, SymInt[2] stride=[], SymInt[2] padding=0, bool ceil_mode=False, "
      "bool count_include_pad=True, str algorithm=\"auto\") -> Tensor",
      tags);
  m.def(
      "avg_pool2d_backward(Tensor grad, SymInt[2] input_size, SymInt[2] kernel_size, SymInt[2] stride=[], "
      "SymInt[2] padding=0, bool ceil_mode=False, bool count_include_pad=True, str algorithm=\"auto\") -> Tensor",
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

}  // namespace
}  // namespace tp
