#include "torch/lenet_layers.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

namespace tp {
namespace {

using lenet::Output;
using lenet::Pooling;

// Calls an operator of this library by its name, with all its arguments, and returns its results.
template <class... Args>
Stack results_of(const char* name, const Args&... args) {
  const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow((std::string("torch_patterns::") + name).c_str(), "");
  Stack stack;
  (stack.push_back(box(args)), ...);
  handle.callBoxed(stack);
  return stack;
}

template <class... Args>
Tensor result_of(const char* name, const Args&... args) {
  return results_of(name, args...)[0].toTensor();
}

const Str automatic = "auto", mean_reduction = "mean";
const Sizes one{1, 1}, none{0, 0}, two{2, 2}, five{5, 5}, empty;

// Calls conv2d or one of its transposes, with filters that move by one pixel over images without padding.
template <class... Args>
Tensor convolution(const char* name, const Args&... args) {
  return result_of(name, args..., one, none, one, SymInt(1), automatic);
}

// The gradient of a bias: the sum over all other dimensions, with the same bits as in the derivatives of conv2d and
// linear.
Tensor sum_of_maps(const Tensor& g) {
  const auto sum = [](const Tensor& x, std::vector<int64_t> dims) {
    return result_of("reduce", x, std::move(dims), Str("sum"), false, automatic);
  };
  if (g.dim() == 2) return sum(g, {0});
  return at::toOpMathType(g.scalar_type()) == g.scalar_type() ? sum(sum(g, {2, 3}), {0}) : sum(g, {0, 2, 3});
}

double sigma() { return std::sqrt(lenet::sigma_squared); }

}  // namespace

Tensor ConvPool::forward(const Tensor& input) {
  const bool subsample = form.pooling == Pooling::subsample;
  x = input;
  const Tensor maps = convolution("conv2d", x, weight, subsample ? OptionalTensor() : OptionalTensor(bias));
  if (subsample) return pooled = result_of("subsample2d", maps, bias, two, form.activation, automatic);
  activated = result_of(activation_names[int(form.function)], maps, automatic);
  if (form.pooling == Pooling::average) {
    return pooled = result_of("avg_pool2d", activated, two, empty, none, false, true, automatic);
  }
  const Stack both = results_of("max_pool2d", activated, two, empty, none, one, false, automatic, false);
  indices = both[1].toTensor();
  return pooled = both[0].toTensor();
}

Tensor ConvPool::backward(const Tensor& grad, bool wants_x, Tensor& grad_weight, Tensor& grad_bias) const {
  Tensor g;
  if (form.pooling == Pooling::subsample) {
    const Stack both = results_of("subsample2d_backward", grad, pooled, two, form.activation, automatic);
    g = both[0].toTensor();
    grad_bias = both[1].toTensor();
  } else {
    const Sizes size{activated.size(2), activated.size(3)};
    g = form.pooling == Pooling::average
            ? result_of("avg_pool2d_backward", grad, size, two, empty, none, false, true, automatic)
            : result_of("max_pool2d_backward", grad, indices, size, two, empty, none, one, false, automatic);
    g = result_of("activation_backward", g, activated, form.activation, automatic);
    grad_bias = sum_of_maps(g);
  }
  grad_weight = convolution("conv2d_wgrad", g, x, five);
  if (!wants_x) return {};
  return convolution("conv2d_dgrad", g, weight, x.sym_sizes().vec());
}

Tensor LayeredNetwork::activate(const Tensor& x) const {
  return result_of(activation_names[int(form.function)], x, automatic);
}

Tensor LayeredNetwork::activate_backward(const Tensor& grad, const Tensor& y) const {
  return result_of("activation_backward", grad, y, form.activation, automatic);
}

Tensor LayeredNetwork::forward(const Tensor& x) {
  second.forward(first.forward(x));
  c5 = activate(convolution("conv2d", second.pooled, p[lenet::c5_weight], OptionalTensor(p[lenet::c5_bias])));
  f6 = activate(result_of("linear", c5.flatten(1), p[lenet::f6_weight], OptionalTensor(p[lenet::f6_bias]), automatic));
  const Tensor& weight = p[lenet::output_weight];
  out = form.output == Output::rbf ? result_of("rbf", f6, weight, sigma(), automatic)
                                   : result_of("linear", f6, weight, OptionalTensor(p[lenet::output_bias]), automatic);
  return out;
}

Tensor LayeredNetwork::loss(const Tensor& target, Tensor& grad) const {
  const Tensor one = at::ones({}, out.options());
  const Tensor cross_entropy = result_of("cross_entropy", out, target, mean_reduction, automatic);  // checks the labels
  if (form.output == Output::linear) {
    grad = result_of("cross_entropy_backward", one, out, target, mean_reduction, automatic);
    return cross_entropy;
  }
  // Summed over the classes.
  const Tensor wanted = target.unsqueeze(-1).eq(at::arange(lenet::classes, target.options())).to(out.scalar_type());
  grad = result_of("squared_error_backward", one * lenet::classes, out, wanted, mean_reduction, automatic);
  return result_of("squared_error", out, wanted, mean_reduction, automatic) * lenet::classes;
}

Tensors LayeredNetwork::backward(Tensor g) const {
  Tensors grads(p.size());
  const Tensor& weight = p[lenet::output_weight];
  if (form.output == Output::rbf) {
    const Stack both = results_of("rbf_backward", g, f6, weight, sigma(), automatic);
    g = both[0].toTensor();
    grads[lenet::output_weight] = both[1].toTensor();
  } else {
    grads[lenet::output_weight] = result_of("linear_wgrad", g, f6, automatic);
    grads[lenet::output_bias] = sum_of_maps(g);
    g = result_of("linear_dgrad", g, weight, automatic);
  }
  g = activate_backward(g, f6);
  grads[lenet::f6_weight] = result_of("linear_wgrad", g, c5.flatten(1), automatic);
  grads[lenet::f6_bias] = sum_of_maps(g);
  g = activate_backward(result_of("linear_dgrad", g, p[lenet::f6_weight], automatic).view_as(c5), c5);
  grads[lenet::c5_weight] = convolution("conv2d_wgrad", g, second.pooled, five);
  grads[lenet::c5_bias] = sum_of_maps(g);
  g = convolution("conv2d_dgrad", g, p[lenet::c5_weight], second.pooled.sym_sizes().vec());
  g = second.backward(g, true, grads[lenet::c3_weight], grads[lenet::s4_bias]);
  first.backward(g, false, grads[lenet::c1_weight], grads[lenet::s2_bias]);
  return grads;
}

Tensor normalized(const Tensor& x, at::ScalarType dtype) {
  return x.scalar_type() == at::kByte ? x.to(dtype).mul_(lenet::pixel_scale).add_(lenet::pixel_offset) : x;
}

void descend(const Tensors& weights, const Tensors& velocities, const Tensors& grads, const Tensor& lr,
             const Tensor& momentum, const Tensor& weight_decay) {
  if (!lr.is_cpu()) {  // the factors are known on the device only; one launch serves all parameters
    const Tensors slopes = at::_foreach_mul(weights, weight_decay);
    at::_foreach_add_(slopes, grads);
    at::_foreach_mul_(velocities, momentum);
    at::_foreach_add_(velocities, slopes);
    at::_foreach_sub_(weights, at::_foreach_mul(velocities, lr));
    return;
  }
  const double rate = lr.item<double>(), keep = momentum.item<double>(), decay = weight_decay.item<double>();
  for (size_t i = 0; i < weights.size(); ++i) {
    const Tensor slope = decay == 0 ? grads[i] : grads[i].add(weights[i], decay);
    velocities[i].mul_(keep).add_(slope);
    weights[i].add_(velocities[i], -rate);
  }
}

}  // namespace tp
