// bipolar_sigmoid, tanh, relu, sign, and activation_backward, which serves them all: each derivative is a function of
// the activation's own value.
#include "torch/activation.h"

#include <ATen/ATen.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include "layers/layers.h"

namespace tp {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Activation activation_of(const char* pattern, Str name) {
  std::string names;
  for (size_t i = 0; i < std::size(activation_names); ++i) {
    if (name == activation_names[i]) return Activation(i);
    names += std::string(i ? ", " : "") + activation_names[i];
  }
  TORCH_CHECK_VALUE(false, pattern, ": unknown activation '", std::string(name), "'; choose from: ", names);
}

Tensor call_activation_backward(const Tensor& grad, const Tensor& y, Str activation, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, Str, Str)>("activation_backward");
  return handle.call(grad, y, activation, algorithm);
}

std::pair<Tensor, Tensor> activation_double_backward(const Tensor& into, const Tensor& grad, const Tensor& y,
                                                     Str activation, Str algorithm) {
  const Tensor for_grad = call_activation_backward(into, y, activation, algorithm);
  switch (activation_of("activation_backward", activation)) {
    case Activation::bipolar_sigmoid:
      return {for_grad, -(into * grad * y)};
    case Activation::tanh:
      return {for_grad, into * grad * y * -2};
    default:
      return {for_grad, at::zeros_like(y)};
  }
}

namespace {

Pattern pattern("activation", layers::activations::ladder);

void check_float(const char* name, const Tensor& x) {
  TORCH_CHECK_TYPE(x.is_floating_point(), name, ": x must be floating point, got ", x.scalar_type());
  dtype_of_tensor(name, x);
}

void check_pair(const Tensor& grad, const Tensor& y) {
  const char* name = "activation_backward";
  check_float(name, grad);
  check_same_device(name, {{"grad", &grad}, {"y", &y}});
  TORCH_CHECK_TYPE(grad.scalar_type() == y.scalar_type(), name, ": grad is ", grad.scalar_type(), ", y is ",
                   y.scalar_type());
  TORCH_CHECK(grad.sym_sizes() == y.sym_sizes(), name, ": grad has shape ", grad.sym_sizes(), ", y has ",
              y.sym_sizes());
}

// ---- kernels: CPU and CUDA alike

Tensor activate_kernel(const char* name, const Tensor& x, Str algorithm) {
  check_float(name, x);
  const Tensor in = x.contiguous();
  Tensor out = at::empty(in.sizes(), in.options());
  layers::Args args{};
  args.step = layers::Step::activation;
  args.activation = activation_of(name, name);
  args.dtype = dtype_of_tensor(name, in);
  args.rows = 1;
  args.columns = in.numel();
  args.x = in.const_data_ptr();
  args.out = out.mutable_data_ptr();
  run(layers::activations::ladder, layers::activations::choose, name, algorithm, in, args);
  return out;
}

Tensor backward_kernel(const Tensor& grad, const Tensor& y, Str activation, Str algorithm) {
  check_pair(grad, y);
  const Tensor g = grad.contiguous(), value = y.contiguous();
  Tensor out = at::empty(g.sizes(), g.options());
  layers::Args args{};
  args.step = layers::Step::activation_backward;
  args.activation = activation_of("activation_backward", activation);
  args.dtype = dtype_of_tensor("activation_backward", g);
  args.rows = 1;
  args.columns = g.numel();
  args.grad = g.const_data_ptr();
  args.y = value.const_data_ptr();
  args.out = out.mutable_data_ptr();
  run(layers::activations::ladder, layers::activations::choose, "activation_backward", algorithm, g, args);
  return out;
}

// ---- Meta

Tensor activate_meta(const char* name, const Tensor& x, Str algorithm) {
  check_float(name, x);
  check_algorithm(layers::activations::ladder, name, algorithm);
  return at::empty_symint(x.sym_sizes(), x.options());
}

Tensor backward_meta(const Tensor& grad, const Tensor& y, Str activation, Str algorithm) {
  check_pair(grad, y);
  activation_of("activation_backward", activation);
  check_algorithm(layers::activations::ladder, "activation_backward", algorithm);
  return at::empty_symint(grad.sym_sizes(), grad.options());
}

// ---- Autograd

struct ActivationFunction : torch::autograd::Function<ActivationFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, std::string name, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    const Tensor y = op<Tensor(const Tensor&, Str)>(name.c_str()).call(x, algorithm);
    ctx->save_for_backward({y});
    ctx->saved_data["activation"] = name;
    ctx->saved_data["algorithm"] = algorithm;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return variable_list(3);
    const auto& saved = ctx->saved_data;
    return {call_activation_backward(grads[0], ctx->get_saved_variables()[0], saved.at("activation").toStringRef(),
                                     saved.at("algorithm").toStringRef()),
            Tensor(), Tensor()};
  }
};

struct BackwardFunction : torch::autograd::Function<BackwardFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& grad, const Tensor& y, std::string activation,
                        std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({grad, y});
    ctx->saved_data["activation"] = activation;
    ctx->saved_data["algorithm"] = algorithm;
    return call_activation_backward(grad, y, activation, algorithm);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return variable_list(4);
    const auto tensors = ctx->get_saved_variables();
    const auto& saved = ctx->saved_data;
    const auto result = activation_double_backward(
        grads[0], tensors[0], tensors[1], saved.at("activation").toStringRef(), saved.at("algorithm").toStringRef());
    return {result.first, result.second, Tensor(), Tensor()};
  }
};

Tensor backward_autograd(const Tensor& grad, const Tensor& y, Str activation, Str algorithm) {
  return BackwardFunction::apply(grad, y, std::string(activation), std::string(algorithm));
}

// ---- registration: one name, one operator

#define TP_ACTIVATIONS(X) X(bipolar_sigmoid) X(tanh) X(relu) X(sign)

void define(torch::Library& m, const char* name) {
  m.def((std::string(name) + "(Tensor x, str algorithm=\"auto\") -> Tensor").c_str(), {at::Tag::pt2_compliant_tag});
}

#define TP_KERNEL(name) \
  m.impl(#name, [](const Tensor& x, Str algorithm) { return activate_kernel(#name, x, algorithm); });
#define TP_META(name) m.impl(#name, [](const Tensor& x, Str algorithm) { return activate_meta(#name, x, algorithm); });
#define TP_AUTOGRAD(name) \
  m.impl(#name,           \
         [](const Tensor& x, Str algorithm) { return ActivationFunction::apply(x, #name, std::string(algorithm)); });

void register_kernels(torch::Library& m) {
  TP_ACTIVATIONS(TP_KERNEL)
  m.impl("activation_backward", &backward_kernel);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
#define TP_DEFINE(name) define(m, #name);
  TP_ACTIVATIONS(TP_DEFINE)
  m.def("activation_backward(Tensor grad, Tensor y, str activation, str algorithm=\"auto\") -> Tensor",
        {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) {
  TP_ACTIVATIONS(TP_META)
  m.impl("activation_backward", &backward_meta);
}
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) {
  TP_ACTIVATIONS(TP_AUTOGRAD)
  m.impl("activation_backward", &backward_autograd);
}

}  // namespace
}  // namespace tp
