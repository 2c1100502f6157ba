// max_pool2d, its backward, and max_pool2d_tangent, which takes x at given indices. At fixed indices pooling is linear:
// the tangent is that linear map, the backward its transpose, and so every order of derivative is one of the two.
#include <torch/library.h>

#include "torch/windows.h"

namespace tp {
namespace {

using c10::SymIntArrayRef;
using pooling::Step;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char *name = "max_pool2d", *backward_name = "max_pool2d_backward", *tangent_name = "max_pool2d_tangent";
Pattern pattern(name, pooling::ladder);

std::tuple<Tensor, Tensor> call_forward(const Tensor& x, const Windows& w, Str algorithm) {
  static const auto handle = op<std::tuple<Tensor, Tensor>(const Tensor&, SymIntArrayRef, SymIntArrayRef,
                                                           SymIntArrayRef, SymIntArrayRef, bool, Str)>(name);
  return handle.call(x, w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode, algorithm);
}

Tensor call_backward(const Tensor& grad, const Tensor& indices, const SymPair& size, const Windows& w, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, SymIntArrayRef, SymIntArrayRef, SymIntArrayRef,
                                       SymIntArrayRef, SymIntArrayRef, bool, Str)>(backward_name);
  return handle.call(grad, indices, size, w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode, algorithm);
}

Tensor call_tangent(const Tensor& x, const Tensor& indices, const Windows& w, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, SymIntArrayRef, SymIntArrayRef, SymIntArrayRef,
                                       SymIntArrayRef, bool, Str)>(tangent_name);
  return handle.call(x, indices, w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode, algorithm);
}

Windows windows_of(const char* op, SymIntArrayRef kernel, SymIntArrayRef stride, SymIntArrayRef padding,
                   SymIntArrayRef dilation, bool ceil_mode) {
  return {pair(op, "kernel_size", kernel), pair(op, "stride", stride, kernel), pair(op, "padding", padding),
          pair(op, "dilation", dilation), ceil_mode};
}

SymPair check_forward(const Tensor& x, const Windows& windows) {
  check_maps(name, "x", x);
  TORCH_CHECK_TYPE(x.scalar_type() != at::kBool, name, ": x must be an integer or floating point, got ",
                   x.scalar_type());
  dtype_of_tensor(name, x);
  return count_windows(name, windows, maps_of(x));
}

void check_backward(const Tensor& grad, const Tensor& indices, const SymPair& size, const Windows& windows) {
  check_maps(backward_name, "grad", grad);
  check_float(backward_name, "grad", grad);
  check_beside(backward_name, "grad", grad, "indices", indices, at::kLong);
  check_shape(backward_name, "grad", grad, count_windows(backward_name, windows, size));
}

SymPair check_tangent(const Tensor& x, const Tensor& indices, const Windows& windows) {
  check_maps(tangent_name, "x", x);
  check_float(tangent_name, "x", x);
  const SymPair outputs = count_windows(tangent_name, windows, maps_of(x));
  check_maps(tangent_name, "indices", indices);
  check_shape(tangent_name, "indices", indices, outputs);
  check_same_device(tangent_name, {{"x", &x}, {"indices", &indices}});
  TORCH_CHECK_TYPE(indices.scalar_type() == at::kLong, tangent_name, ": indices must be int64, got ",
                   indices.scalar_type());
  TORCH_CHECK(indices.sym_sizes().slice(0, indices.dim() - 2) == x.sym_sizes().slice(0, x.dim() - 2), tangent_name,
              ": x has shape ", x.sym_sizes(), ", indices have ", indices.sym_sizes());
  return outputs;
}

// ---- kernels: CPU and CUDA alike

std::tuple<Tensor, Tensor> forward_kernel(const Tensor& x, SymIntArrayRef kernel, SymIntArrayRef stride,
                                          SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil_mode,
                                          Str algorithm) {
  const Windows windows = windows_of(name, kernel, stride, padding, dilation, ceil_mode);
  const SymPair outputs = check_forward(x, windows);
  const auto format = format_of(x);
  const Tensor in = x.contiguous(format);
  auto args = pooling_args(name, in, format, windows, maps_of(x), outputs);
  check_taps(name, args);
  Tensor out = empty_maps(x, outputs, x.scalar_type()), indices = empty_maps(x, outputs, at::kLong);
  args.step = Step::maximum;
  args.x = in.const_data_ptr();
  args.y = out.mutable_data_ptr();
  args.indices = indices.mutable_data_ptr<int64_t>();
  run(pooling::ladder, pooling::choose, name, algorithm, in, args);
  return {out, indices};
}

Tensor backward_kernel(const Tensor& grad, const Tensor& indices, SymIntArrayRef input_size, SymIntArrayRef kernel,
                       SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil_mode,
                       Str algorithm) {
  const Windows windows = windows_of(backward_name, kernel, stride, padding, dilation, ceil_mode);
  const SymPair size = pair(backward_name, "input_size", input_size);
  check_backward(grad, indices, size, windows);
  const auto format = format_of(grad);
  const Tensor g = grad.contiguous(format), places = indices.contiguous(format);
  Tensor out = empty_maps(grad, size, grad.scalar_type());
  auto args = pooling_args(backward_name, g, format, windows, size, maps_of(grad));
  args.step = Step::maximum_backward;
  args.grad = g.const_data_ptr();
  args.indices = const_cast<int64_t*>(places.const_data_ptr<int64_t>());
  args.grad_x = out.mutable_data_ptr();
  run(pooling::ladder, pooling::choose, backward_name, algorithm, g, args);
  return out;
}

Tensor tangent_kernel(const Tensor& x, const Tensor& indices, SymIntArrayRef kernel, SymIntArrayRef stride,
                      SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil_mode, Str algorithm) {
  const Windows windows = windows_of(tangent_name, kernel, stride, padding, dilation, ceil_mode);
  const SymPair outputs = check_tangent(x, indices, windows);
  const auto format = format_of(x);
  const Tensor in = x.contiguous(format), places = indices.contiguous(format);
  Tensor out = empty_maps(x, outputs, x.scalar_type());
  auto args = pooling_args(tangent_name, in, format, windows, maps_of(x), outputs);
  args.step = Step::maximum_tangent;
  args.x = in.const_data_ptr();
  args.indices = const_cast<int64_t*>(places.const_data_ptr<int64_t>());
  args.y = out.mutable_data_ptr();
  run(pooling::ladder, pooling::choose, tangent_name, algorithm, in, args);
  return out;
}

// ---- Meta

std::tuple<Tensor, Tensor> forward_meta(const Tensor& x, SymIntArrayRef kernel, SymIntArrayRef stride,
                                        SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil_mode,
                                        Str algorithm) {
  const SymPair outputs = check_forward(x, windows_of(name, kernel, stride, padding, dilation, ceil_mode));
  check_algorithm(pooling::ladder, name, algorithm);
  return {empty_maps(x, outputs, x.scalar_type()), empty_maps(x, outputs, at::kLong)};
}

Tensor backward_meta(const Tensor& grad, const Tensor& indices, SymIntArrayRef input_size, SymIntArrayRef kernel,
                     SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil_mode,
                     Str algorithm) {
  const SymPair size = pair(backward_name, "input_size", input_size);
  check_backward(grad, indices, size, windows_of(backward_name, kernel, stride, padding, dilation, ceil_mode));
  check_algorithm(pooling::ladder, backward_name, algorithm);
  return empty_maps(grad, size, grad.scalar_type());
}

Tensor tangent_meta(const Tensor& x, const Tensor& indices, SymIntArrayRef kernel, SymIntArrayRef stride,
                    SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil_mode, Str algorithm) {
  const SymPair outputs =
      check_tangent(x, indices, windows_of(tangent_name, kernel, stride, padding, dilation, ceil_mode));
  check_algorithm(pooling::ladder, tangent_name, algorithm);
  return empty_maps(x, outputs, x.scalar_type());
}

// ---- Autograd

// What all three keep for their derivative.
void save(AutogradContext* ctx, const Tensor& indices, const SymPair& size, const Windows& windows,
          const std::string& algorithm) {
  ctx->save_for_backward({indices});
  ctx->saved_data["size"] = SymIntArrayRef(size);
  ctx->saved_data["algorithm"] = algorithm;
  windows.save(ctx->saved_data);
}

Tensor transpose(AutogradContext* ctx, const Tensor& grad) {
  const auto& saved = ctx->saved_data;
  const auto size = saved.at("size").toSymIntVector();
  return call_backward(grad, ctx->get_saved_variables()[0], {size[0], size[1]}, Windows::load(saved),
                       saved.at("algorithm").toStringRef());
}

struct ForwardFunction : torch::autograd::Function<ForwardFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Windows& windows, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [y, indices] = call_forward(x, windows, algorithm);
    ctx->mark_non_differentiable({indices});
    save(ctx, indices, maps_of(x), windows, algorithm);
    return {y, indices};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return variable_list(3);
    return {transpose(ctx, grads[0]), Tensor(), Tensor()};
  }
};

struct BackwardFunction : torch::autograd::Function<BackwardFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& grad, const Tensor& indices, const SymPair& size,
                        const Windows& windows, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    save(ctx, indices, size, windows, algorithm);
    return call_backward(grad, indices, size, windows, algorithm);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(5);
    if (!grads[0].defined()) return result;
    const auto& saved = ctx->saved_data;
    result[0] = call_tangent(grads[0], ctx->get_saved_variables()[0], Windows::load(saved),
                             saved.at("algorithm").toStringRef());
    return result;
  }
};

struct TangentFunction : torch::autograd::Function<TangentFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& indices, const Windows& windows,
                        std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    const Tensor y = call_tangent(x, indices, windows, algorithm);
    save(ctx, indices, maps_of(x), windows, algorithm);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return variable_list(4);
    return {transpose(ctx, grads[0]), Tensor(), Tensor(), Tensor()};
  }
};

std::tuple<Tensor, Tensor> forward_autograd(const Tensor& x, SymIntArrayRef kernel, SymIntArrayRef stride,
                                            SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil_mode,
                                            Str algorithm) {
  const Windows windows = windows_of(name, kernel, stride, padding, dilation, ceil_mode);
  const auto result = ForwardFunction::apply(x, windows, std::string(algorithm));
  return {result[0], result[1]};
}

Tensor backward_autograd(const Tensor& grad, const Tensor& indices, SymIntArrayRef input_size, SymIntArrayRef kernel,
                         SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil_mode,
                         Str algorithm) {
  const Windows windows = windows_of(backward_name, kernel, stride, padding, dilation, ceil_mode);
  const SymPair size = pair(backward_name, "input_size", input_size);
  return BackwardFunction::apply(grad, indices, size, windows, std::string(algorithm));
}

Tensor tangent_autograd(const Tensor& x, const Tensor& indices, SymIntArrayRef kernel, SymIntArrayRef stride,
                        SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil_mode, Str algorithm) {
  const Windows windows = windows_of(tangent_name, kernel, stride, padding, dilation, ceil_mode);
  return TangentFunction::apply(x, indices, windows, std::string(algorithm));
}

void register_kernels(torch::Library& m) {
  m.impl(name, &forward_kernel);
  m.impl(backward_name, &backward_kernel);
  m.impl(tangent_name, &tangent_kernel);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  const std::string windows =
      "SymInt[2] kernel_size, SymInt[2] stride=[], SymInt[2] padding=0, SymInt[2] dilation=1, bool ceil_mode=False, "
      "str algorithm=\"auto\")";
  m.def(("max_pool2d(Tensor x, " + windows + " -> (Tensor, Tensor)").c_str(), tags);
  m.def(("max_pool2d_backward(Tensor grad, Tensor indices, SymInt[2] input_size, " + windows + " -> Tensor").c_str(),
        tags);
  m.def(("max_pool2d_tangent(Tensor x, Tensor indices, " + windows + " -> Tensor").c_str(), tags);
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) {
  m.impl(name, &forward_meta);
  m.impl(backward_name, &backward_meta);
  m.impl(tangent_name, &tangent_meta);
}
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) {
  m.impl(name, &forward_autograd);
  m.impl(backward_name, &backward_autograd);
  m.impl(tangent_name, &tangent_autograd);
}

}  // namespace
}  // namespace tp
