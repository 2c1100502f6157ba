// torch_patterns::cross_entropy, squared_error and absolute_error, each with its backward: checks, kernels, Meta,
// derivatives.
//
// For each loss there are two formulas, made of torch's operators and the library's sums. The slope is the change of
// the losses along a direction d of x; the bend is the change of their gradient. The slope, reduced, is the tangent of
// the loss. It is also the gradient for grad, if d is the gradient of the backward's result. Because second derivatives
// are symmetric, the bend times grad is both the tangent of the backward and its gradient for x. Errors depend only on
// x minus the second tensor. If a label is out of range, on CUDA, both formulas give 0.
#include <ATen/ATen.h>

#include "layers/layers.h"
#include "torch/checks.h"
#include "torch/gradient.h"
#include "torch/reduce.h"

namespace tp {
namespace {

using layers::Reduction;
using layers::Step;

Pattern pattern("loss", layers::losses::ladder);

#define TP_REST ", str reduction=\"mean\", str algorithm=\"auto\") -> Tensor"

struct CrossEntropy {
  static constexpr auto schema = "cross_entropy(Tensor logits, Tensor target" TP_REST,
                        backward_schema = "cross_entropy_backward(Tensor grad, Tensor logits, Tensor target" TP_REST;
  static constexpr const char *op_name = "cross_entropy", *backward_name = "cross_entropy_backward", *x = "logits",
                              *second = "target";
  static constexpr Step step = Step::cross_entropy, backward_step = Step::cross_entropy_backward;
  static constexpr bool classifies = true;  // samples are rows of x, and the second tensor holds their labels

  CrossEntropy(const Tensor& logits, const Tensor& target)
      : p(logits.softmax(1)), labels(target.unsqueeze(1)), classes(at::arange(logits.sym_size(1), target.options())) {}
  Tensor slope(const Tensor& d) const {
    return sum(weighed(d) - at::where(labels == classes, d, at::zeros_like(d)), /*keepdim=*/false);
  }
  Tensor bend(const Tensor& d) const { return weighed(d) - p * sum(weighed(d), /*keepdim=*/true); }

 private:
  Tensor weighed(const Tensor& d) const {
    return at::where((labels >= 0) & (labels < classes.sym_size(0)), p * d, at::zeros_like(p));
  }
  static Tensor sum(const Tensor& t, bool keepdim) {
    return call(Reduce{t, std::vector<int64_t>{1}, "sum", keepdim, "auto"});
  }
  Tensor p, labels, classes;
};

// The square or the absolute value of y - t.
template <bool squared>
struct ErrorLoss {
  static constexpr auto schema = squared ? "squared_error(Tensor y, Tensor t" TP_REST
                                         : "absolute_error(Tensor y, Tensor t" TP_REST,
                        backward_schema = squared ? "squared_error_backward(Tensor grad, Tensor y, Tensor t" TP_REST
                                                  : "absolute_error_backward(Tensor grad, Tensor y, Tensor t" TP_REST;
  static constexpr const char *op_name = squared ? "squared_error" : "absolute_error",
                              *backward_name = squared ? "squared_error_backward" : "absolute_error_backward", *x = "y",
                              *second = "t";
  static constexpr Step step = squared ? Step::squared_error : Step::absolute_error,
                        backward_step = squared ? Step::squared_error_backward : Step::absolute_error_backward;
  static constexpr bool classifies = false;

  ErrorLoss(const Tensor& y, const Tensor& t) : factor(squared ? y - t : (y - t).sign()) {}
  Tensor slope(const Tensor& d) const { return d * factor; }
  Tensor bend(const Tensor& d) const { return squared ? d : at::zeros_like(d); }

  Tensor factor;
};

#undef TP_REST

template <class Loss>
struct Apply {
  static constexpr auto schema = Loss::schema;
  Tensor x, second;
  Str reduction, algorithm;

  TP_DIFFERENTIABLE(Tensor);
  Autocast autocast() const { return Autocast::float32; }
};

template <class Loss>
struct ApplyBackward {
  static constexpr auto schema = Loss::backward_schema;
  Tensor grad, x, second;
  Str reduction, algorithm;

  TP_DIFFERENTIABLE(Tensor);
  Tensor times_grad(const Tensor& each) const;
};

Reduction reduction_of(const char* op, Str reduction) {
  if (reduction == "none") return Reduction::none;
  if (reduction == "sum") return Reduction::sum;
  if (reduction == "mean") return Reduction::mean;
  TORCH_CHECK_VALUE(false, op, ": unknown reduction '", std::string(reduction), "'; choose from: mean, sum, none");
}

// ---- checks

template <class Loss>
void check_inputs(const char* op, const Tensor& x, const Tensor& second) {
  check_float(op, Loss::x, x);
  if (Loss::classifies) {
    check_same_device(op, {{Loss::x, &x}, {Loss::second, &second}});
    TORCH_CHECK(x.dim() == 2, op, ": logits must be [samples, classes], got shape ", x.sym_sizes());
    TORCH_CHECK_TYPE(second.scalar_type() == at::kLong, op, ": target must be int64, got ", second.scalar_type());
    TORCH_SYM_CHECK(sym_equals(second.sym_sizes(), {x.sym_size(0)}), op, ": target must have shape [", x.sym_size(0),
                    "] for logits ", x.sym_sizes(), ", got ", second.sym_sizes());
  } else {
    check_alike(op, {Loss::x, x}, {Loss::second, second});
    check_same_shape(op, {Loss::x, x}, {Loss::second, second});
  }
}

template <class Loss>
Sizes loss_shape(const Tensor& x, Reduction reduction) {
  if (reduction != Reduction::none) return {};
  if (Loss::classifies) return {x.sym_size(0)};
  return x.sym_sizes().vec();
}

// The CPU raises. On CUDA, where a check would cost a synchronization, the sample's loss is NaN and its gradient is 0.
void check_labels(const char* op, const Tensor& target, int64_t classes) {
  if (!target.is_cpu()) return;
  const int64_t* labels = target.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < target.numel(); ++i) {
    TORCH_CHECK_INDEX(labels[i] >= 0 && labels[i] < classes, op, ": target[", i, "] is ", labels[i], "; labels of ",
                      classes, " classes are from 0 to ", classes - 1);
  }
}

// ---- kernels: CPU and CUDA alike

template <class Loss>
layers::Args common_args(const char* op, const Tensor& x, const Tensor& second, Reduction reduction) {
  layers::Args args{};
  args.reduction = reduction;
  args.dtype = dtype_of_tensor(op, x);
  args.rows = Loss::classifies ? x.size(0) : 1;
  args.columns = Loss::classifies ? x.size(1) : x.numel();
  args.x = x.const_data_ptr();
  if (Loss::classifies) {
    check_labels(op, second, x.size(1));
    args.target = second.const_data_ptr<int64_t>();
  } else {
    args.y = second.const_data_ptr();
  }
  return args;
}

template <class Loss>
Tensor Apply<Loss>::kernel() const {
  const Reduction how = reduction_of(Loss::op_name, reduction);
  check_inputs<Loss>(Loss::op_name, x, second);
  Tensor out = empty_result(loss_shape<Loss>(x, how), x.options());
  if (is_done(out, layers::losses::ladder, Loss::op_name, algorithm)) return out;
  const Tensor in = x.contiguous(), other = second.contiguous();
  layers::Args args = common_args<Loss>(Loss::op_name, in, other, how);
  args.step = Loss::step;
  args.out = out.mutable_data_ptr();
  run(layers::losses::ladder, layers::losses::choose, Loss::op_name, algorithm, in, args);
  return out;
}

template <class Loss>
Tensor ApplyBackward<Loss>::kernel() const {
  const char* const op = Loss::backward_name;
  const Reduction how = reduction_of(op, reduction);
  check_inputs<Loss>(op, x, second);
  check_alike(op, {"grad", grad}, {Loss::x, x});
  const Sizes shape = loss_shape<Loss>(x, how);
  TORCH_SYM_CHECK(sym_equals(grad.sym_sizes(), shape), op, ": grad must have shape ", SymIntArrayRef(shape), ", got ",
                  grad.sym_sizes());
  Tensor out = empty_result(x.sym_sizes(), x.options());
  if (is_done(out, layers::losses::ladder, op, algorithm)) return out;
  const Tensor g = grad.contiguous(), in = x.contiguous(), other = second.contiguous();
  layers::Args args = common_args<Loss>(op, in, other, how);
  args.step = Loss::backward_step;
  args.grad = g.const_data_ptr();
  args.out = out.mutable_data_ptr();
  run(layers::losses::ladder, layers::losses::choose, op, algorithm, in, args);
  return out;
}

// ---- derivatives

// A loss at x; half types are computed in float32.
template <class Loss>
Loss loss_at(const Tensor& x, const Tensor& second) {
  return Loss::classifies ? Loss(x.to(wide_dtype(x)), second) : Loss(x.to(wide_dtype(x)), second.to(wide_dtype(x)));
}

// The change of the reduced loss along d.
template <class Loss>
Tensor slope_along(const Tensor& d, const Tensor& x, const Tensor& second, Str reduction) {
  const Tensor each = loss_at<Loss>(x, second).slope(d.to(wide_dtype(x)));
  return (reduction == "none" ? each : call(Reduce{each, {}, reduction, false, "auto"})).to(x.scalar_type());
}

// `each`, one number per loss, times the gradient of the loss.
template <class Loss>
Tensor ApplyBackward<Loss>::times_grad(const Tensor& each) const {
  Tensor g = grad.to(each.scalar_type());
  while (g.dim() < each.dim()) g = g.unsqueeze(-1);
  if (reduction == "mean") g = g / at::Scalar(Loss::classifies ? x.sym_size(0) : x.sym_numel());
  return (each * g).to(x.scalar_type());
}

template <class Loss>
Tensors Apply<Loss>::vjp(const Backward& b) const {
  const Tensor g = call(ApplyBackward<Loss>{b.grad(), x, second, reduction, algorithm});
  return {g, b.wants(1) ? -g : Tensor()};
}

// The tangent of x minus that of the second tensor.
Tensor difference(const Tensor& x, const Tensor& second) { return second.defined() ? plus(x, -second) : x; }

template <class Loss>
Tensors Apply<Loss>::jvp(const Forward& f) const {
  return {slope_along<Loss>(difference(f.tangent(0), f.tangent(1)), x, second, reduction)};
}

template <class Loss>
Tensors ApplyBackward<Loss>::vjp(const Backward& b) const {
  const Tensor& d = b.grad();
  Tensors grads(3);
  if (b.wants(0)) grads[0] = slope_along<Loss>(d, x, second, reduction);
  if (b.wants(1) || b.wants(2)) grads[1] = times_grad(loss_at<Loss>(x, second).bend(d.to(wide_dtype(x))));
  if (b.wants(2)) grads[2] = -grads[1];
  return grads;
}

template <class Loss>
Tensors ApplyBackward<Loss>::jvp(const Forward& f) const {
  const Tensor d = difference(f.tangent(1), f.tangent(2));
  Tensor t;
  if (f.tangent(0).defined()) t = call(ApplyBackward{f.tangent(0), x, second, reduction, algorithm});
  if (d.defined()) t = plus(t, times_grad(loss_at<Loss>(x, second).bend(d.to(wide_dtype(x)))));
  return {t};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  define<Apply<CrossEntropy>, ApplyBackward<CrossEntropy>>(m);
  define<Apply<ErrorLoss<true>>, ApplyBackward<ErrorLoss<true>>, Apply<ErrorLoss<false>>,
         ApplyBackward<ErrorLoss<false>>>(m);
}

}  // namespace
}  // namespace tp
