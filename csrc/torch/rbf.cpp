// rbf, the Gaussian output layer, and its backward operator.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include "layers/layers.h"
#include "torch/checks.h"

namespace tp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Pattern pattern("rbf", layers::gaussians::ladder);

Tensor call_rbf(const Tensor& x, const Tensor& centres, double sigma, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, double, Str)>("rbf");
  return handle.call(x, centres, sigma, algorithm);
}
std::tuple<Tensor, Tensor> call_rbf_backward(const Tensor& grad, const Tensor& x, const Tensor& centres, double sigma,
                                             Str algorithm) {
  static const auto handle =
      op<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, double, Str)>("rbf_backward");
  return handle.call(grad, x, centres, sigma, algorithm);
}

void check_rbf(const char* op, const Tensor& x, const Tensor& centres, double sigma) {
  check_floats(op, {{"x", x}, {"centres", centres}});
  TORCH_CHECK(x.dim() == 2 && centres.dim() == 2 && x.sym_size(1) == centres.sym_size(1), op,
              ": x must be [samples, features] and centres [classes, features], got ", x.sym_sizes(), " and ",
              centres.sym_sizes());
  TORCH_CHECK_VALUE(sigma > 0, op, ": sigma must be positive, got ", sigma);
}

void check_rbf_backward(const Tensor& grad, const Tensor& x, const Tensor& centres, double sigma) {
  check_rbf("rbf_backward", x, centres, sigma);
  check_floats("rbf_backward", {{"x", x}, {"grad", grad}});
  TORCH_CHECK(grad.dim() == 2 && grad.sym_size(0) == x.sym_size(0) && grad.sym_size(1) == centres.sym_size(0),
              "rbf_backward: grad must have shape [", x.sym_size(0), ", ", centres.sym_size(0), "], got ",
              grad.sym_sizes());
}

// ---- kernels: CPU and CUDA alike

layers::Args rbf_args(const Tensor& x, const Tensor& centres, double sigma) {
  layers::Args args{};
  args.dtype = dtype_of_tensor("rbf", x);
  args.sigma = sigma;
  args.rows = x.size(0);
  args.columns = centres.size(0);
  args.features = x.size(1);
  args.x = x.const_data_ptr();
  args.y = centres.const_data_ptr();
  return args;
}

Tensor rbf_kernel(const Tensor& x, const Tensor& centres, double sigma, Str algorithm) {
  check_rbf("rbf", x, centres, sigma);
  const Tensor points = x.contiguous(), middles = centres.contiguous();
  Tensor out = at::empty({x.size(0), centres.size(0)}, x.options());
  layers::Args args = rbf_args(points, middles, sigma);
  args.step = layers::Step::rbf;
  args.out = out.mutable_data_ptr();
  run(layers::gaussians::ladder, layers::gaussians::choose, "rbf", algorithm, points, args);
  return out;
}

std::tuple<Tensor, Tensor> rbf_backward_kernel(const Tensor& grad, const Tensor& x, const Tensor& centres, double sigma,
                                               Str algorithm) {
  check_rbf_backward(grad, x, centres, sigma);
  const Tensor g = grad.contiguous(), points = x.contiguous(), middles = centres.contiguous();
  Tensor grad_x = at::empty(points.sizes(), x.options()), grad_centres = at::empty(middles.sizes(), x.options());
  layers::Args args = rbf_args(points, middles, sigma);
  args.step = layers::Step::rbf_backward;
  args.grad = g.const_data_ptr();
  args.out = grad_x.mutable_data_ptr();
  args.out_y = grad_centres.mutable_data_ptr();
  run(layers::gaussians::ladder, layers::gaussians::choose, "rbf_backward", algorithm, points, args);
  return {grad_x, grad_centres};
}

// ---- Meta

Tensor rbf_meta(const Tensor& x, const Tensor& centres, double sigma, Str algorithm) {
  check_rbf("rbf", x, centres, sigma);
  check_algorithm(layers::gaussians::ladder, "rbf", algorithm);
  return at::empty_symint({x.sym_size(0), centres.sym_size(0)}, x.options());
}
std::tuple<Tensor, Tensor> rbf_backward_meta(const Tensor& grad, const Tensor& x, const Tensor& centres, double sigma,
                                             Str algorithm) {
  check_rbf_backward(grad, x, centres, sigma);
  check_algorithm(layers::gaussians::ladder, "rbf_backward", algorithm);
  return {at::empty_symint(x.sym_sizes(), x.options()), at::empty_symint(centres.sym_sizes(), x.options())};
}

// ---- Autograd

struct RbfFunction : torch::autograd::Function<RbfFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& centres, double sigma,
                        std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({x, centres});
    ctx->saved_data["sigma"] = sigma;
    ctx->saved_data["algorithm"] = algorithm;
    return call_rbf(x, centres, sigma, algorithm);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return variable_list(4);
    const auto tensors = ctx->get_saved_variables();
    const auto& saved = ctx->saved_data;
    const auto [grad_x, grad_centres] = call_rbf_backward(
        grads[0], tensors[0], tensors[1], saved.at("sigma").toDouble(), saved.at("algorithm").toStringRef());
    return {grad_x, grad_centres, Tensor(), Tensor()};
  }
};

// With y = rbf(x, c), E = grad y / sigma^2 and P[n, c] = (u[n] - v[c]) . (c[c] - x[n]), the gradients u and v into the
// two results make <u, grad_x> + <v, grad_c> = sum of E P. Its derivative by grad is y P / sigma^2; those by x and c
// are what grad P / sigma^2 would pull, and what E pulls of u and v.
struct RbfBackwardFunction : torch::autograd::Function<RbfBackwardFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& grad, const Tensor& x, const Tensor& centres,
                               double sigma, std::string algorithm) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({grad, x, centres});
    ctx->saved_data["sigma"] = sigma;
    ctx->saved_data["algorithm"] = algorithm;
    const auto [grad_x, grad_centres] = call_rbf_backward(grad, x, centres, sigma, algorithm);
    return {grad_x, grad_centres};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);  // in the dtype of x throughout
    const auto tensors = ctx->get_saved_variables();
    const Tensor &g = tensors[0], &x = tensors[1], &c = tensors[2];
    const Tensor u = grads[0].contiguous(), v = grads[1].contiguous();  // their strides do not change the bits
    const double sigma = ctx->saved_data.at("sigma").toDouble(), scale = 1 / (sigma * sigma);
    const std::string algorithm = ctx->saved_data.at("algorithm").toStringRef();
    const Tensor weight = call_rbf(x, c, sigma, algorithm) * scale, e = g * weight;
    const Tensor p = u.mm(c.t()) + x.mm(v.t()) - (u * x).sum(1, true) - (v * c).sum(1).unsqueeze(0);
    const auto [pulled_x, pulled_c] = call_rbf_backward(g * p * scale, x, c, sigma, algorithm);
    const Tensor for_x = pulled_x + e.mm(v) - e.sum(1, true) * u;
    const Tensor for_c = pulled_c + (e.unsqueeze(2) * u.unsqueeze(1)).sum(0) - e.sum(0).unsqueeze(1) * v;
    return {weight * p, for_x, for_c, Tensor(), Tensor()};
  }
};

Tensor rbf_autograd(const Tensor& x, const Tensor& centres, double sigma, Str algorithm) {
  return RbfFunction::apply(x, centres, sigma, std::string(algorithm));
}
std::tuple<Tensor, Tensor> rbf_backward_autograd(const Tensor& grad, const Tensor& x, const Tensor& centres,
                                                 double sigma, Str algorithm) {
  const auto result = RbfBackwardFunction::apply(grad, x, centres, sigma, std::string(algorithm));
  return {result[0], result[1]};
}

// ---- Autocast: in float32

template <c10::DeviceType device, c10::DispatchKey key>
Tensor rbf_autocast(const Tensor& x, const Tensor& centres, double sigma, Str algorithm) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const auto cast = [](const Tensor& t) { return at::autocast::cached_cast(at::kFloat, t, device); };
  return call_rbf(cast(x), cast(centres), sigma, algorithm);
}

void register_kernels(torch::Library& m) {
  m.impl("rbf", &rbf_kernel);
  m.impl("rbf_backward", &rbf_backward_kernel);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def("rbf(Tensor x, Tensor centres, float sigma, str algorithm=\"auto\") -> Tensor", tags);
  m.def("rbf_backward(Tensor grad, Tensor x, Tensor centres, float sigma, str algorithm=\"auto\") -> (Tensor, Tensor)",
        tags);
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) {
  m.impl("rbf", &rbf_meta);
  m.impl("rbf_backward", &rbf_backward_meta);
}
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) {
  m.impl("rbf", &rbf_autograd);
  m.impl("rbf_backward", &rbf_backward_autograd);
}
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCPU, m) {
  m.impl("rbf", &rbf_autocast<at::kCPU, c10::DispatchKey::AutocastCPU>);
}
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCUDA, m) {
  m.impl("rbf", &rbf_autocast<at::kCUDA, c10::DispatchKey::AutocastCUDA>);
}

}  // namespace
}  // namespace tp
