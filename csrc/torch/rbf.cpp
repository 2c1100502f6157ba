// torch_patterns::rbf, the Gaussian output layer, and its backward: checks, kernels, Meta, derivatives.
//
// y[n, c] = exp(-|x[n] - c[c]|^2 / (2 sigma^2)). Along a direction (u, v) of x and the centres, y changes by W P, where
// W = y / sigma^2 and P[n, c] = (u[n] - v[c]) . (c[c] - x[n]). That is the tangent of y, and also the gradient for grad
// if u and v are the gradients of rbf_backward's results. With E = grad W, the second derivative of <grad, y>, which is
// symmetric, maps (u, v) to what rbf_backward gives for grad P / sigma^2, plus
//   for x: the sum over c of E (v[c] - u[n]), for the centres: the sum over n of E (u[n] - v[c]).
// Both modes of rbf_backward use it.
#include <ATen/ATen.h>

#include "layers/layers.h"
#include "torch/checks.h"
#include "torch/reduce.h"

namespace tp {
namespace {

struct Rbf {
  static constexpr auto schema = "rbf(Tensor x, Tensor centres, float sigma, str algorithm=\"auto\") -> Tensor";
  Tensor x, centres;
  double sigma;
  Str algorithm;

  TP_DIFFERENTIABLE(Tensor);
  Autocast autocast() const { return Autocast::float32; }
};

Pattern pattern("rbf", layers::gaussians::ladder);

struct RbfBackward {
  static constexpr auto schema =
      "rbf_backward(Tensor grad, Tensor x, Tensor centres, float sigma, str algorithm=\"auto\") -> (Tensor, Tensor)";
  Tensor grad, x, centres;
  double sigma;
  Str algorithm;

  TP_DIFFERENTIABLE(std::tuple<Tensor, Tensor>);
};

void check_rbf(const char* op, const Tensor& x, const Tensor& centres, double sigma) {
  check_floats(op, {{"x", x}, {"centres", centres}});
  const bool matrices = x.dim() == 2 && centres.dim() == 2;
  TORCH_SYM_CHECK(matrices ? x.sym_size(1).sym_eq(centres.sym_size(1)) : c10::SymBool(false), op,
                  ": x must be [samples, features] and centres [classes, features], got ", x.sym_sizes(), " and ",
                  centres.sym_sizes());
  TORCH_CHECK_VALUE(sigma > 0, op, ": sigma must be positive, got ", sigma);
}

layers::Args rbf_args(layers::Step step, const Tensor& x, const Tensor& centres, double sigma) {
  layers::Args args{};
  args.step = step;
  args.dtype = dtype_of_tensor("rbf", x);
  args.sigma = sigma;
  args.rows = x.size(0);
  args.columns = centres.size(0);
  args.features = x.size(1);
  args.x = x.const_data_ptr();
  args.y = centres.const_data_ptr();
  return args;
}

}  // namespace

Tensor Rbf::kernel() const {
  check_rbf("rbf", x, centres, sigma);
  Tensor out = empty_result({x.sym_size(0), centres.sym_size(0)}, x.options());
  if (is_done(out, layers::gaussians::ladder, "rbf", algorithm)) return out;
  const Tensor points = x.contiguous(), middles = centres.contiguous();
  layers::Args args = rbf_args(layers::Step::rbf, points, middles, sigma);
  args.out = out.mutable_data_ptr();
  run(layers::gaussians::ladder, layers::gaussians::choose, "rbf", algorithm, points, args);
  return out;
}

std::tuple<Tensor, Tensor> RbfBackward::kernel() const {
  check_rbf("rbf_backward", x, centres, sigma);
  check_floats("rbf_backward", {{"x", x}, {"grad", grad}});
  TORCH_SYM_CHECK(sym_equals(grad.sym_sizes(), {x.sym_size(0), centres.sym_size(0)}),
                  "rbf_backward: grad must have shape [", x.sym_size(0), ", ", centres.sym_size(0), "], got ",
                  grad.sym_sizes());
  Tensor grad_x = empty_result(x.sym_sizes(), x.options());
  Tensor grad_centres = empty_result(centres.sym_sizes(), x.options());
  if (x.is_meta()) {
    check_algorithm(layers::gaussians::ladder, "rbf_backward", algorithm);
    return {grad_x, grad_centres};
  }
  const Tensor g = grad.contiguous(), points = x.contiguous(), middles = centres.contiguous();
  layers::Args args = rbf_args(layers::Step::rbf_backward, points, middles, sigma);
  args.grad = g.const_data_ptr();
  args.out = grad_x.mutable_data_ptr();
  args.out_y = grad_centres.mutable_data_ptr();
  run(layers::gaussians::ladder, layers::gaussians::choose, "rbf_backward", algorithm, points, args);
  return {grad_x, grad_centres};
}

// ---- derivatives of forward mode and of second order: in float64, and rounded once. P is a difference of products
// that may nearly cancel, and autocast, which nothing turns off below the transforms of torch.func, leaves float64
// alone.

namespace {

Tensor wide(const Tensor& t) { return t.defined() ? t.to(at::kDouble) : t; }

Rbf wide(const Rbf& p) { return {wide(p.x), wide(p.centres), p.sigma, p.algorithm}; }

RbfBackward wide(const RbfBackward& p) { return {wide(p.grad), wide(p.x), wide(p.centres), p.sigma, p.algorithm}; }

Tensor sum(const Tensor& x, int64_t dim, bool keepdim = false) {
  return call(Reduce{x, std::vector<int64_t>{dim}, "sum", keepdim, "auto"});
}

// sigma W. W and P each take one factor 1 / sigma, because 1 / sigma^2 may be beyond the dtype.
Tensor weight_of(const Tensor& x, const Tensor& centres, double sigma, Str algorithm) {
  return call(Rbf{x, centres, sigma, algorithm}) / sigma;
}

// P / sigma; u or v may be undefined.
Tensor slope_along(const Tensor& u, const Tensor& v, const Tensor& x, const Tensor& centres, double sigma) {
  const Tensor from_x = u.defined() ? u.mm(centres.t()) - sum(u * x, 1, true) : Tensor();
  return (v.defined() ? plus(from_x, x.mm(v.t()) - sum(v * centres, 1)) : from_x) / sigma;
}

// The second derivative of <grad, rbf(x, centres)> along (u, v), either of which may be undefined.
std::pair<Tensor, Tensor> second_derivative(const RbfBackward& p, const Tensor& weight, const Tensor& slope,
                                            const Tensor& u, const Tensor& v) {
  const Tensor e = p.grad * weight, pulled = p.grad * slope / p.sigma;
  auto [for_x, for_centres] = call(RbfBackward{pulled, p.x, p.centres, p.sigma, p.algorithm});
  if (u.defined()) {
    const Tensor scaled = u / p.sigma;
    for_x = for_x - sum(e, 1, true) * scaled;
    for_centres = for_centres + sum(e.unsqueeze(2) * scaled.unsqueeze(1), 0);
  }
  if (v.defined()) {
    const Tensor scaled = v / p.sigma;
    for_x = for_x + e.mm(scaled);
    for_centres = for_centres - sum(e, 0).unsqueeze(1) * scaled;
  }
  return {for_x, for_centres};
}

}  // namespace

Tensors Rbf::vjp(const Backward& b) const {
  const auto [grad_x, grad_centres] = call(RbfBackward{b.grad(), x, centres, sigma, algorithm});
  return {grad_x, grad_centres};
}

Tensors Rbf::jvp(const Forward& f) const {
  const Rbf p = wide(*this);
  const Tensor slope = slope_along(wide(f.tangent(0)), wide(f.tangent(1)), p.x, p.centres, sigma);
  return {(slope * weight_of(p.x, p.centres, sigma, algorithm)).to(x.scalar_type())};
}

Tensors RbfBackward::vjp(const Backward& b) const {
  const auto contiguous = [](const Tensor& t) { return t.defined() ? wide(t).contiguous() : t; };
  // They are made contiguous, so that their strides do not change the bits.
  const Tensor u = contiguous(b.grad(0)), v = contiguous(b.grad(1));
  const RbfBackward p = wide(*this);
  const Tensor weight = weight_of(p.x, p.centres, sigma, algorithm), slope = slope_along(u, v, p.x, p.centres, sigma);
  Tensors grads(3);
  if (b.wants(0)) grads[0] = (weight * slope).to(grad.scalar_type());
  if (b.wants(1) || b.wants(2)) {
    const auto [for_x, for_centres] = second_derivative(p, weight, slope, u, v);
    grads[1] = for_x.to(x.scalar_type()), grads[2] = for_centres.to(centres.scalar_type());
  }
  return grads;
}

Tensors RbfBackward::jvp(const Forward& f) const {
  const Tensor t = wide(f.tangent(0)), u = wide(f.tangent(1)), v = wide(f.tangent(2));
  const RbfBackward p = wide(*this);
  Tensor for_x, for_centres;
  if (u.defined() || v.defined()) {
    const Tensor weight = weight_of(p.x, p.centres, sigma, algorithm);
    std::tie(for_x, for_centres) = second_derivative(p, weight, slope_along(u, v, p.x, p.centres, sigma), u, v);
  }
  if (t.defined()) {
    const auto [linear_x, linear_centres] = call(RbfBackward{t, p.x, p.centres, sigma, algorithm});
    for_x = plus(for_x, linear_x), for_centres = plus(for_centres, linear_centres);
  }
  return {for_x.to(x.scalar_type()), for_centres.to(centres.scalar_type())};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<Rbf, RbfBackward>(m); }

}  // namespace tp
