// cross_entropy, squared_error and absolute_error, each with its backward operator. The second derivatives are written
// in torch's operators: nobody trains by them, and so they exist to every order.
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include "layers/layers.h"
#include "torch/glue.h"

namespace tp {
namespace {

using layers::Reduction;
using layers::Step;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Pattern pattern("loss", layers::losses::ladder);

// A loss of x [..] and a second tensor; all three have these operators:
//   name(x, second, reduction, algorithm) -> losses             name_backward(grad, x, second, reduction, algorithm) ->
//   grad_x
using Forward = Tensor(const Tensor&, const Tensor&, Str, Str);
using Backward = Tensor(const Tensor&, const Tensor&, const Tensor&, Str, Str);

struct CrossEntropy {
  static constexpr const char *name = "cross_entropy", *backward = "cross_entropy_backward";
  static constexpr const char *x = "logits", *second = "target";
  static constexpr Step step = Step::cross_entropy, backward_step = Step::cross_entropy_backward;
  static constexpr bool classifies = true;
};
struct SquaredError {
  static constexpr const char *name = "squared_error", *backward = "squared_error_backward";
  static constexpr const char *x = "y", *second = "t";
  static constexpr Step step = Step::squared_error, backward_step = Step::squared_error_backward;
  static constexpr bool classifies = false;
};
struct AbsoluteError {
  static constexpr const char *name = "absolute_error", *backward = "absolute_error_backward";
  static constexpr const char *x = "y", *second = "t";
  static constexpr Step step = Step::absolute_error, backward_step = Step::absolute_error_backward;
  static constexpr bool classifies = false;
};

template <class Loss>
const auto& forward_op() {
  static const auto handle = op<Forward>(Loss::name);
  return handle;
}
template <class Loss>
const auto& backward_op() {
  static const auto handle = op<Backward>(Loss::backward);
  return handle;
}

Reduction reduction_of(const char* name, Str reduction) {
  if (reduction == "none") return Reduction::none;
  if (reduction == "sum") return Reduction::sum;
  if (reduction == "mean") return Reduction::mean;
  TORCH_CHECK_VALUE(false, name, ": unknown reduction '", std::string(reduction), "'; choose from: mean, sum, none");
}

// ---- checks

template <class Loss>
void check_inputs(const char* name, const Tensor& x, const Tensor& second) {
  TORCH_CHECK_TYPE(x.is_floating_point(), name, ": ", Loss::x, " must be floating point, got ", x.scalar_type());
  dtype_of_tensor(name, x);
  check_same_device(name, {{Loss::x, &x}, {Loss::second, &second}});
  if (Loss::classifies) {
    TORCH_CHECK(x.dim() == 2, name, ": logits must be [samples, classes], got shape ", x.sym_sizes());
    TORCH_CHECK_TYPE(second.scalar_type() == at::kLong, name, ": target must be int64, got ", second.scalar_type());
    TORCH_CHECK(second.dim() == 1 && second.sym_size(0) == x.sym_size(0), name, ": target must have shape [",
                x.sym_size(0), "] for logits ", x.sym_sizes(), ", got ", second.sym_sizes());
  } else {
    TORCH_CHECK_TYPE(second.scalar_type() == x.scalar_type(), name, ": y is ", x.scalar_type(), ", t is ",
                     second.scalar_type());
    TORCH_CHECK(second.sym_sizes() == x.sym_sizes(), name, ": y has shape ", x.sym_sizes(), ", t has ",
                second.sym_sizes());
  }
}

template <class Loss>
std::vector<c10::SymInt> loss_shape(const Tensor& x, Reduction reduction) {
  if (reduction != Reduction::none) return {};
  if (Loss::classifies) return {x.sym_size(0)};
  return x.sym_sizes().vec();
}

template <class Loss>
void check_grad(const Tensor& grad, const Tensor& x, Reduction reduction) {
  check_same_device(Loss::backward, {{Loss::x, &x}, {"grad", &grad}});
  TORCH_CHECK_TYPE(grad.scalar_type() == x.scalar_type(), Loss::backward, ": grad is ", grad.scalar_type(), ", ",
                   Loss::x, " is ", x.scalar_type());
  const auto shape = loss_shape<Loss>(x, reduction);
  TORCH_CHECK(grad.sym_sizes() == c10::SymIntArrayRef(shape), Loss::backward, ": grad must have shape ",
              c10::SymIntArrayRef(shape), ", got ", grad.sym_sizes());
}

// The CPU raises; CUDA, where that would take a synchronisation, makes the sample's loss NaN and its gradient zero.
void check_labels(const char* name, const Tensor& target, int64_t classes) {
  if (!target.is_cpu()) return;
  const int64_t* labels = target.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < target.numel(); ++i) {
    TORCH_CHECK_INDEX(labels[i] >= 0 && labels[i] < classes, name, ": target[", i, "] is ", labels[i], "; labels of ",
                      classes, " classes are from 0 to ", classes - 1);
  }
}

// ---- kernels: CPU and CUDA alike

template <class Loss>
layers::Args common_args(const char* name, const Tensor& x, const Tensor& second, Reduction reduction) {
  layers::Args args{};
  args.reduction = reduction;
  args.dtype = dtype_of_tensor(name, x);
  args.rows = Loss::classifies ? x.size(0) : 1;
  args.columns = Loss::classifies ? x.size(1) : x.numel();
  args.x = x.const_data_ptr();
  if (Loss::classifies) {
    check_labels(name, second, x.size(1));
    args.target = second.const_data_ptr<int64_t>();
  } else {
    args.y = second.const_data_ptr();
  }
  return args;
}

template <class Loss>
Tensor forward_kernel(const Tensor& x, const Tensor& second, Str reduction, Str algorithm) {
  const Reduction how = reduction_of(Loss::name, reduction);
  check_inputs<Loss>(Loss::name, x, second);
  const Tensor in = x.contiguous(), other = second.contiguous();
  Tensor out = at::empty_symint(loss_shape<Loss>(in, how), in.options());
  layers::Args args = common_args<Loss>(Loss::name, in, other, how);
  args.step = Loss::step;
  args.out = out.mutable_data_ptr();
  run(layers::losses::ladder, layers::losses::choose, Loss::name, algorithm, in, args);
  return out;
}

template <class Loss>
Tensor backward_kernel(const Tensor& grad, const Tensor& x, const Tensor& second, Str reduction, Str algorithm) {
  const Reduction how = reduction_of(Loss::backward, reduction);
  check_inputs<Loss>(Loss::backward, x, second);
  check_grad<Loss>(grad, x, how);
  const Tensor g = grad.contiguous(), in = x.contiguous(), other = second.contiguous();
  Tensor out = at::empty(in.sizes(), in.options());
  layers::Args args = common_args<Loss>(Loss::backward, in, other, how);
  args.step = Loss::backward_step;
  args.grad = g.const_data_ptr();
  args.out = out.mutable_data_ptr();
  run(layers::losses::ladder, layers::losses::choose, Loss::backward, algorithm, in, args);
  return out;
}

// ---- Meta

template <class Loss>
Tensor forward_meta(const Tensor& x, const Tensor& second, Str reduction, Str algorithm) {
  const Reduction how = reduction_of(Loss::name, reduction);
  check_inputs<Loss>(Loss::name, x, second);
  check_algorithm(layers::losses::ladder, Loss::name, algorithm);
  return at::empty_symint(loss_shape<Loss>(x, how), x.options());
}

template <class Loss>
Tensor backward_meta(const Tensor& grad, const Tensor& x, const Tensor& second, Str reduction, Str algorithm) {
  const Reduction how = reduction_of(Loss::backward, reduction);
  check_inputs<Loss>(Loss::backward, x, second);
  check_grad<Loss>(grad, x, how);
  check_algorithm(layers::losses::ladder, Loss::backward, algorithm);
  return at::empty_symint(x.sym_sizes(), x.options());
}

// ---- Autograd

// `grad` of the losses as a gradient of each: of the shape of x, or a column beside it.
template <class Loss>
Tensor each_grad(const Tensor& grad, const Tensor& x, Reduction reduction) {
  if (reduction == Reduction::none) return Loss::classifies ? grad.unsqueeze(1) : grad;
  if (reduction == Reduction::sum) return grad;
  const c10::SymInt n = Loss::classifies ? x.sym_size(0) : x.sym_numel();
  return grad / at::Scalar(n);
}

// The sum of all elements, in a tree that does not depend on the number of threads.
Tensor sum_all(const Tensor& x) {
  const c10::SymInt n = x.sym_numel(), parts = (n + 255) / 256;
  const Tensor padded = at::constant_pad_nd_symint(x.reshape(-1), {0, parts * 256 - n});
  return padded.view_symint({parts, 256}).sum(1).sum();
}

// What is `each` for every loss as a gradient of the reduced loss.
template <class Loss>
Tensor reduced(const Tensor& each, const Tensor& x, Reduction reduction) {
  const Tensor losses = Loss::classifies ? each.sum(1) : each;
  if (reduction == Reduction::none) return losses;
  return each_grad<Loss>(sum_all(losses), x, reduction);
}

// The gradients of <into, name_backward(grad, x, second)> for grad, x and second.
template <class Loss>
variable_list double_backward(const Tensor& into, const Tensor& grad, const Tensor& x, const Tensor& second,
                              Reduction reduction) {
  const Tensor g = each_grad<Loss>(grad, x, reduction);
  if (Loss::classifies) {
    const c10::SymInt classes = x.sym_size(1);
    const Tensor wide = x.to(at::toOpMathType(x.scalar_type())), p = wide.softmax(1);
    const Tensor labels = second.unsqueeze(1), valid = (labels >= 0) & (labels < classes);
    const Tensor hit = labels == at::arange(classes, second.options());
    const Tensor weighed = at::where(valid, p * into, at::zeros_like(p));
    const Tensor for_grad = weighed - at::where(hit, into.to(p.scalar_type()), at::zeros_like(p));
    const Tensor for_x = g * (weighed - p * weighed.sum(1, /*keepdim=*/true));
    return {reduced<Loss>(for_grad.to(x.scalar_type()), x, reduction), for_x.to(x.scalar_type()), Tensor()};
  }
  if (Loss::step == Step::absolute_error) {
    const Tensor zero = at::zeros_like(x);
    return {reduced<Loss>(into * (x - second).sign(), x, reduction), zero, zero};
  }
  const Tensor pull = into * g;
  return {reduced<Loss>(into * (x - second), x, reduction), pull, -pull};
}

template <class Loss>
struct ForwardFunction : torch::autograd::Function<ForwardFunction<Loss>> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& second, std::string reduction,
                        std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({x, second});
    ctx->saved_data["reduction"] = reduction;
    ctx->saved_data["algorithm"] = algorithm;
    return forward_op<Loss>().call(x, second, reduction, algorithm);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(4);
    if (!grads[0].defined()) return result;
    const auto tensors = ctx->get_saved_variables();
    const auto& saved = ctx->saved_data;
    result[0] = backward_op<Loss>().call(grads[0], tensors[0], tensors[1], saved.at("reduction").toStringRef(),
                                         saved.at("algorithm").toStringRef());
    if (!Loss::classifies && ctx->needs_input_grad(1)) result[1] = -result[0];
    return result;
  }
};

template <class Loss>
struct BackwardFunction : torch::autograd::Function<BackwardFunction<Loss>> {
  static Tensor forward(AutogradContext* ctx, const Tensor& grad, const Tensor& x, const Tensor& second,
                        std::string reduction, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({grad, x, second});
    ctx->saved_data["reduction"] = reduction;
    return backward_op<Loss>().call(grad, x, second, reduction, algorithm);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return variable_list(5);
    const auto tensors = ctx->get_saved_variables();
    const Reduction how = reduction_of(Loss::backward, ctx->saved_data.at("reduction").toStringRef());
    variable_list result = double_backward<Loss>(grads[0], tensors[0], tensors[1], tensors[2], how);
    result.resize(5);
    return result;
  }
};

template <class Loss>
Tensor forward_autograd(const Tensor& x, const Tensor& second, Str reduction, Str algorithm) {
  return ForwardFunction<Loss>::apply(x, second, std::string(reduction), std::string(algorithm));
}

template <class Loss>
Tensor backward_autograd(const Tensor& grad, const Tensor& x, const Tensor& second, Str reduction, Str algorithm) {
  return BackwardFunction<Loss>::apply(grad, x, second, std::string(reduction), std::string(algorithm));
}

// ---- Autocast: losses run in and return float32

template <class Loss, c10::DeviceType device, c10::DispatchKey key>
Tensor forward_autocast(const Tensor& x, const Tensor& second, Str reduction, Str algorithm) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const auto cast = [](const Tensor& t) { return at::autocast::cached_cast(at::kFloat, t, device); };
  return forward_op<Loss>().call(cast(x), cast(second), reduction, algorithm);
}

// ---- registration

template <class Loss>
void define(torch::Library& m) {
  const std::string tensors = std::string("Tensor ") + Loss::x + ", Tensor " + Loss::second;
  const std::string rest = ", str reduction=\"mean\", str algorithm=\"auto\") -> Tensor";
  m.def((Loss::name + ("(" + tensors) + rest).c_str(), {at::Tag::pt2_compliant_tag});
  m.def((Loss::backward + ("(Tensor grad, " + tensors) + rest).c_str(), {at::Tag::pt2_compliant_tag});
}

template <class Loss>
void register_kernels(torch::Library& m) {
  m.impl(Loss::name, &forward_kernel<Loss>);
  m.impl(Loss::backward, &backward_kernel<Loss>);
}
template <class Loss>
void register_meta(torch::Library& m) {
  m.impl(Loss::name, &forward_meta<Loss>);
  m.impl(Loss::backward, &backward_meta<Loss>);
}
template <class Loss>
void register_autograd(torch::Library& m) {
  m.impl(Loss::name, &forward_autograd<Loss>);
  m.impl(Loss::backward, &backward_autograd<Loss>);
}
template <c10::DeviceType device, c10::DispatchKey key>
void register_autocast(torch::Library& m) {
  m.impl(CrossEntropy::name, &forward_autocast<CrossEntropy, device, key>);
  m.impl(SquaredError::name, &forward_autocast<SquaredError, device, key>);
  m.impl(AbsoluteError::name, &forward_autocast<AbsoluteError, device, key>);
}

#define TP_EACH_LOSS(f) f<CrossEntropy>(m), f<SquaredError>(m), f<AbsoluteError>(m)

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { TP_EACH_LOSS(define); }
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { TP_EACH_LOSS(register_kernels); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { TP_EACH_LOSS(register_kernels); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) { TP_EACH_LOSS(register_meta); }
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) { TP_EACH_LOSS(register_autograd); }
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCPU, m) { register_autocast<at::kCPU, c10::DispatchKey::AutocastCPU>(m); }
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCUDA, m) { register_autocast<at::kCUDA, c10::DispatchKey::AutocastCUDA>(m); }

}  // namespace
}  // namespace tp
