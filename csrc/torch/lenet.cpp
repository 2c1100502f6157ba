// torch_patterns::lenet5: the network's outputs; lenet5_train_step, lenet5_train_epoch: stochastic gradient descent in
// place; lenet5_minibatches: what an epoch trains on.
//
// The layered network is composed here of the other operators, forward and backward, through the dispatcher. There is
// no derivative of lenet5 itself: where one is asked for, its Autograd kernel is that composition, whose operators have
// theirs. The training computes its own gradients, so it refuses tensors that require one, and it tells autograd what
// it changed: the version of every parameter and momentum goes up.
#include "lenet/lenet.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>

#include "lenet/minibatches/minibatches.h"
#include "torch/activation.h"
#include "torch/operator.h"

namespace tp {
namespace {

using lenet::Output;
using lenet::Pooling;
using TensorList = at::TensorList;

Pattern pattern("lenet5", lenet::ladder);

// Results of an operator of this library, called by its name with all its arguments.
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

// The gradient of a bias: the sum over all other dimensions, with the bits that the derivatives of conv2d and linear
// give.
Tensor sum_of_maps(const Tensor& g) {
  const auto sum = [](const Tensor& x, std::vector<int64_t> dims) {
    return result_of("reduce", x, std::move(dims), Str("sum"), false, automatic);
  };
  if (g.dim() == 2) return sum(g, {0});
  return sum(sum(g.to(at::toOpMathType(g.scalar_type())), {2, 3}), {0}).to(g.scalar_type());
}

struct Form {
  Str activation;
  Activation function;
  Pooling pooling;
  Output output;

  Form(const char* op, Str activation, Str pooling, Str output)
      : activation(activation),
        function(activation_of(op, activation)),
        pooling(Pooling(choice(op, "pooling", pooling, lenet::pooling_names))),
        output(Output(choice(op, "output", output, lenet::output_names))) {
    TORCH_CHECK_VALUE(
        function == Activation::tanh || function == Activation::bipolar_sigmoid || function == Activation::relu, op,
        ": activation must be tanh, bipolar_sigmoid or relu, got '", std::string(activation), "'");
  }

  size_t parameters() const { return output == Output::rbf ? lenet::output_bias : lenet::most_parameters; }

 private:
  template <size_t n>
  static int choice(const char* op, const char* what, Str word, const char* const (&names)[n]) {
    std::string all;
    for (size_t i = 0; i < n; ++i) {
      if (word == names[i]) return int(i);
      all += std::string(i ? ", " : "") + names[i];
    }
    TORCH_CHECK_VALUE(false, op, ": ", what, " must be one of ", all, ", got '", std::string(word), "'");
  }
};

// ---- the layered network

// A convolution, the activation, and the pooling after it, with what their backward reads.
struct ConvPool {
  const Form& form;
  const Tensor &weight, &bias;
  Tensor x, activated, pooled, indices;

  Tensor forward(const Tensor& input) {
    const Sizes one{1, 1}, none{0, 0}, two{2, 2}, empty;
    const bool subsample = form.pooling == Pooling::subsample;
    x = input;
    const Tensor maps = result_of("conv2d", x, weight, subsample ? OptionalTensor() : OptionalTensor(bias), one, none,
                                  one, SymInt(1), automatic);
    if (subsample) return pooled = result_of("subsample2d", maps, bias, two, form.activation, automatic);
    activated = result_of(activation_names[int(form.function)], maps, automatic);
    if (form.pooling == Pooling::average) {
      return pooled = result_of("avg_pool2d", activated, two, empty, none, false, true, automatic);
    }
    const Stack both = results_of("max_pool2d", activated, two, empty, none, one, false, automatic);
    indices = both[1].toTensor();
    return pooled = both[0].toTensor();
  }

  // The gradients of the weight and of the bias, and where wanted that of x.
  Tensor backward(const Tensor& grad, bool wants_x, Tensor& grad_weight, Tensor& grad_bias) const {
    const Sizes one{1, 1}, none{0, 0}, two{2, 2}, five{5, 5}, empty;
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
    grad_weight = result_of("conv2d_wgrad", g, x, five, one, none, one, SymInt(1), automatic);
    if (!wants_x) return {};
    return result_of("conv2d_dgrad", g, weight, Sizes{x.size(2), x.size(3)}, one, none, one, SymInt(1), automatic);
  }
};

struct LayeredNetwork {
  Form form;
  Tensors p;
  ConvPool first{form, p[lenet::c1_weight], p[lenet::s2_bias], {}, {}, {}, {}};
  ConvPool second{form, p[lenet::c3_weight], p[lenet::s4_bias], {}, {}, {}, {}};
  Tensor c5, f6, out;  // c5 is [N, 120, 1, 1]

  Tensor activate(const Tensor& x) const { return result_of(activation_names[int(form.function)], x, automatic); }
  Tensor activate_backward(const Tensor& grad, const Tensor& y) const {
    return result_of("activation_backward", grad, y, form.activation, automatic);
  }
  static double sigma() { return std::sqrt(lenet::sigma_squared); }

  Tensor forward(const Tensor& x) {
    const Sizes one{1, 1}, none{0, 0};
    second.forward(first.forward(x));
    c5 = activate(result_of("conv2d", second.pooled, p[lenet::c5_weight], OptionalTensor(p[lenet::c5_bias]), one, none,
                            one, SymInt(1), automatic));
    f6 =
        activate(result_of("linear", c5.flatten(1), p[lenet::f6_weight], OptionalTensor(p[lenet::f6_bias]), automatic));
    const Tensor& weight = p[lenet::output_weight];
    out = form.output == Output::rbf
              ? result_of("rbf", f6, weight, sigma(), automatic)
              : result_of("linear", f6, weight, OptionalTensor(p[lenet::output_bias]), automatic);
    return out;
  }

  // The mean loss, and its gradient for `out`.
  Tensor loss(const Tensor& target, Tensor& grad) const {
    const Tensor one = at::ones({}, out.options());
    const Tensor cross_entropy =
        result_of("cross_entropy", out, target, mean_reduction, automatic);  // checks the labels
    if (form.output == Output::linear) {
      grad = result_of("cross_entropy_backward", one, out, target, mean_reduction, automatic);
      return cross_entropy;
    }
    // Summed over the classes.
    const Tensor wanted = target.unsqueeze(-1).eq(at::arange(lenet::classes, target.options())).to(out.scalar_type());
    grad = result_of("squared_error_backward", one * lenet::classes, out, wanted, mean_reduction, automatic);
    return result_of("squared_error", out, wanted, mean_reduction, automatic) * lenet::classes;
  }

  // The gradients of all parameters.
  Tensors backward(Tensor g) const {
    const Sizes one{1, 1}, none{0, 0}, five{5, 5};
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
    grads[lenet::c5_weight] = result_of("conv2d_wgrad", g, second.pooled, five, one, none, one, SymInt(1), automatic);
    grads[lenet::c5_bias] = sum_of_maps(g);
    g = result_of("conv2d_dgrad", g, p[lenet::c5_weight], Sizes{lenet::s4_size, lenet::s4_size}, one, none, one,
                  SymInt(1), automatic);
    g = second.backward(g, true, grads[lenet::c3_weight], grads[lenet::s4_bias]);
    first.backward(g, false, grads[lenet::c1_weight], grads[lenet::s2_bias]);
    return grads;
  }
};

Tensor normalized(const Tensor& x, at::ScalarType dtype) {
  return x.scalar_type() == at::kByte ? x.to(dtype).mul_(lenet::pixel_scale).add_(lenet::pixel_offset) : x;
}

// One update as torch.optim.SGD makes it. On the CPU, where reading a number waits for nothing, with the same
// roundings.
void descend(const Tensor& weight, const Tensor& velocity, Tensor grad, const Tensor& lr, const Tensor& momentum,
             const Tensor& weight_decay) {
  if (weight.is_cpu()) {
    const double decay = weight_decay.item<double>();
    if (decay != 0) grad = grad.add(weight, decay);
    velocity.mul_(momentum.item<double>()).add_(grad);
    weight.add_(velocity, -lr.item<double>());
  } else {
    velocity.mul_(momentum).add_(grad.add(weight * weight_decay));
    weight.sub_(velocity * lr);
  }
}

// ---- checks

struct Shape {
  std::initializer_list<int64_t> sizes;
};
const Shape shapes[] = {{{6, 1, 5, 5}}, {{6}},       {{16, 6, 5, 5}}, {{16}},     {{120, 16, 5, 5}},
                        {{120}},        {{84, 120}}, {{84}},          {{10, 84}}, {{10}}};

void check_parameters(const char* op, const char* name, const Tensor& x, TensorList params, const Form& form) {
  TORCH_CHECK(params.size() == form.parameters(), op, ": ", name, " must be the ", form.parameters(),
              " parameters of LeNet5 in their order, got ", params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    const Tensor& p = params[i];
    const std::string which = std::string(name) + "[" + std::to_string(i) + "]";
    check_same_device(op, {{"x", &x}, {which.c_str(), &p}});
    TORCH_CHECK(p.sizes() == at::IntArrayRef(shapes[i].sizes), op, ": ", which, " must have shape ",
                at::IntArrayRef(shapes[i].sizes), ", got ", p.sizes());
    TORCH_CHECK_TYPE(p.is_floating_point() && p.scalar_type() == params[0].scalar_type(), op, ": ", which, " is ",
                     p.scalar_type(), "; all must be of one floating-point dtype");
  }
}

void check_images(const char* op, const Tensor& x, TensorList params) {
  const bool fits = x.dim() == 4 && x.sym_size(1) == 1 && x.sym_size(2) == 32 && x.sym_size(3) == 32;
  TORCH_CHECK_VALUE(fits, op, ": images must be of shape [N, 1, 32, 32]; these are of shape ", x.sym_sizes());
  TORCH_CHECK_TYPE(x.scalar_type() == at::kByte || x.scalar_type() == params[0].scalar_type(), op,
                   ": images must be uint8 or, like the parameters, ", params[0].scalar_type(), ", got ",
                   x.scalar_type());
}

lenet::Args args_of(const char* op, const Tensor& x, TensorList params, const Form& form) {
  lenet::Args args{};
  args.dtype = dtype_of_tensor(op, params[0]);
  args.activation = form.function;
  args.pooling = form.pooling;
  args.output = form.output;
  args.images = args.batch = x.size(0);
  args.x = x.const_data_ptr();
  args.x_is_bytes = x.scalar_type() == at::kByte;
  for (size_t i = 0; i < params.size(); ++i) args.parameters[i] = params[i].data_ptr();
  return args;
}

// ---- kernels: CPU and CUDA alike

constexpr const char *name = "lenet5", *step_name = "lenet5_train_step", *epoch_name = "lenet5_train_epoch",
                     *minibatches_name = "lenet5_minibatches";

Tensor lenet5_kernel(const Tensor& x, TensorList params, Str activation, Str pooling, Str output, Str algorithm) {
  const Form form(name, activation, pooling, output);
  check_parameters(name, "params", x, params, form);
  check_images(name, x, params);
  const Tensor images = x.contiguous();
  Tensors weights;
  for (const Tensor& p : params) weights.push_back(p.contiguous());
  Tensor out = at::empty({images.size(0), lenet::classes}, weights[0].options());
  auto args = args_of(name, images, weights, form);
  args.out = out.mutable_data_ptr();
  args.layers = [&] {
    LayeredNetwork network{form, weights};
    out = network.forward(normalized(images, weights[0].scalar_type()));
  };
  run(lenet::ladder, lenet::choose, name, algorithm, images, args);
  return out;
}

struct Hyperparameters {
  const Tensor &lr, &momentum, &weight_decay;

  void check(const char* op, const Tensor& x, const Tensor& weight, int64_t steps) const {
    const auto one = [&](const char* which, const Tensor& t, bool per_step) {
      check_same_device(op, {{"x", &x}, {which, &t}});
      TORCH_CHECK_TYPE(t.scalar_type() == weight.scalar_type(), op, ": ", which, " must be, like the parameters, ",
                       weight.scalar_type(), ", got ", t.scalar_type());
      TORCH_CHECK(t.dim() == 0 || (per_step && t.dim() == 1 && t.size(0) == steps), op, ": ", which,
                  per_step ? " must be a 0-D tensor, or one number per step" : " must be a 0-D tensor", ", got shape ",
                  t.sizes());
    };
    one("lr", lr, true);
    one("momentum", momentum, false);
    one("weight_decay", weight_decay, false);
  }
};

// Step after step over minibatches of `batch` images -> losses and hits, one per step.
std::tuple<Tensor, Tensor> train(const char* op, const Tensor& x, const Tensor& target, TensorList params,
                                 TensorList momenta, const Hyperparameters& h, int64_t batch, const Form& form,
                                 Str algorithm) {
  check_parameters(op, "params", x, params, form);
  check_parameters(op, "momenta", x, momenta, form);
  check_images(op, x, params);
  check_same_device(op, {{"x", &x}, {"target", &target}});
  TORCH_CHECK_TYPE(target.scalar_type() == at::kLong, op, ": target must be int64, got ", target.scalar_type());
  TORCH_CHECK(target.dim() == 1 && target.size(0) == x.size(0), op, ": target must have shape [", x.size(0),
              "], one class per image, got ", target.sizes());
  TORCH_CHECK(batch >= 1, op, ": batch must be positive, got ", batch);
  for (const TensorList list : {params, momenta}) {
    for (const Tensor& p : list) TORCH_CHECK(p.is_contiguous(), op, ": parameters and momenta must be contiguous");
  }
  TORCH_CHECK_TYPE(momenta[0].scalar_type() == params[0].scalar_type(), op, ": params are ", params[0].scalar_type(),
                   ", momenta ", momenta[0].scalar_type());
  const int64_t steps = ceil_div(x.size(0), batch);
  h.check(op, x, params[0], steps);
  const Tensor images = x.contiguous(), labels = target.contiguous(), lr = h.lr.contiguous();
  Tensor losses = at::empty({steps}, params[0].options()), hits = at::empty({steps}, labels.options());
  auto args = args_of(op, images, params, form);
  args.train = true;
  args.batch = batch;
  args.target = labels.const_data_ptr<int64_t>();
  for (size_t i = 0; i < momenta.size(); ++i) args.momenta[i] = momenta[i].data_ptr();
  args.lr = lr.const_data_ptr();
  args.lr_stride = lr.dim();
  args.momentum = h.momentum.const_data_ptr();
  args.weight_decay = h.weight_decay.const_data_ptr();
  args.losses = losses.mutable_data_ptr();
  args.hits = hits.mutable_data_ptr<int64_t>();
  args.layers = [&] {
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t first = step * batch, count = min(batch, images.size(0) - first);
      const Tensor minibatch = normalized(images.narrow(0, first, count), params[0].scalar_type());
      const Tensor wanted = labels.narrow(0, first, count);
      LayeredNetwork network{form, params.vec()};
      network.forward(minibatch);
      Tensor grad;
      losses[step].copy_(network.loss(wanted, grad));
      hits[step].copy_(network.out.argmax(1).eq(wanted).sum());
      const Tensors grads = network.backward(grad);
      const Tensor rate = lr.dim() == 0 ? lr : lr[step];
      for (size_t i = 0; i < params.size(); ++i) {
        descend(params[i], momenta[i], grads[i], rate, h.momentum, h.weight_decay);
      }
    }
  };
  run(lenet::ladder, lenet::choose, op, algorithm, images, args);
  return {losses, hits};
}

Tensor step_kernel(const Tensor& x, const Tensor& target, TensorList params, TensorList momenta, const Tensor& lr,
                   const Tensor& momentum, const Tensor& weight_decay, Str activation, Str pooling, Str output,
                   Str algorithm) {
  const Form form(step_name, activation, pooling, output);
  TORCH_CHECK_VALUE(x.dim() > 0 && x.size(0) > 0, step_name, ": a step needs at least one image");
  TORCH_CHECK(lr.dim() == 0, step_name, ": lr must be a 0-D tensor, got shape ", lr.sizes());
  const auto [losses, hits] =
      train(step_name, x, target, params, momenta, {lr, momentum, weight_decay}, x.size(0), form, algorithm);
  return losses.squeeze(0).clone();
}

std::tuple<Tensor, Tensor> epoch_kernel(const Tensor& x, const Tensor& target, TensorList params, TensorList momenta,
                                        const Tensor& lr, const Tensor& momentum, const Tensor& weight_decay,
                                        int64_t batch, Str activation, Str pooling, Str output, Str algorithm) {
  const Form form(epoch_name, activation, pooling, output);
  return train(epoch_name, x, target, params, momenta, {lr, momentum, weight_decay}, batch, form, algorithm);
}

void check_digits(const Tensor& images, const Tensor& target, const Tensor& seed, const Tensor& epoch) {
  const char* op = minibatches_name;
  const bool fits =
      images.dim() == 4 && images.sym_size(1) == 1 && images.sym_size(2) == 32 && images.sym_size(3) == 32;
  TORCH_CHECK_VALUE(fits, op, ": images must be of shape [N, 1, 32, 32]; these are of shape ", images.sym_sizes());
  TORCH_CHECK_TYPE(images.scalar_type() == at::kByte, op, ": images must be uint8, got ", images.scalar_type());
  TORCH_CHECK(target.dim() == 1 && target.sym_size(0) == images.sym_size(0), op, ": target must have shape [",
              images.sym_size(0), "], got ", target.sym_sizes());
  check_same_device(op, {{"images", &images}, {"target", &target}, {"seed", &seed}, {"epoch", &epoch}});
  for (const auto& [which, t] :
       {std::pair<const char*, const Tensor&>{"target", target}, {"seed", seed}, {"epoch", epoch}}) {
    TORCH_CHECK_TYPE(t.scalar_type() == at::kLong, op, ": ", which, " must be int64, got ", t.scalar_type());
  }
  TORCH_CHECK(seed.dim() == 0 && epoch.dim() == 0, op, ": seed and epoch must be 0-D tensors");
}

std::tuple<Tensor, Tensor> minibatches_meta(const Tensor& images, const Tensor& target, const Tensor& seed,
                                            const Tensor& epoch, bool, bool distort) {
  check_digits(images, target, seed, epoch);
  const auto options = distort ? images.options().dtype(at::kFloat) : images.options();
  return {at::empty_symint(images.sym_sizes(), options), at::empty_symint(target.sym_sizes(), target.options())};
}

std::tuple<Tensor, Tensor> minibatches_kernel(const Tensor& images, const Tensor& target, const Tensor& seed,
                                              const Tensor& epoch, bool shuffle, bool distort) {
  const auto [out, out_target] = minibatches_meta(images, target, seed, epoch, shuffle, distort);
  const Tensor from = images.contiguous(), labels = target.contiguous();
  const lenet::MinibatchArgs args{from.size(0),
                                  from.const_data_ptr<uint8_t>(),
                                  labels.const_data_ptr<int64_t>(),
                                  seed.const_data_ptr<int64_t>(),
                                  epoch.const_data_ptr<int64_t>(),
                                  shuffle,
                                  distort,
                                  out.mutable_data_ptr(),
                                  out_target.mutable_data_ptr<int64_t>()};
  translate_errors([&] {
    TorchContext context(from);
    lenet::minibatches(args, context);
  });
  return {out, out_target};
}

// ---- Meta

Tensor lenet5_meta(const Tensor& x, TensorList params, Str activation, Str pooling, Str output, Str algorithm) {
  check_parameters(name, "params", x, params, Form(name, activation, pooling, output));
  check_images(name, x, params);
  check_algorithm(lenet::ladder, name, algorithm);
  return at::empty_symint({x.sym_size(0), lenet::classes}, params[0].options());
}

Tensor step_meta(const Tensor&, const Tensor&, TensorList params, TensorList, const Tensor&, const Tensor&,
                 const Tensor&, Str activation, Str pooling, Str output, Str algorithm) {
  const Form form(step_name, activation, pooling, output);
  TORCH_CHECK(params.size() == form.parameters(), step_name, ": params must be the ", form.parameters(),
              " parameters of LeNet5 in their order, got ", params.size());
  check_algorithm(lenet::ladder, step_name, algorithm);
  return at::empty({}, params[0].options());
}

std::tuple<Tensor, Tensor> epoch_meta(const Tensor& x, const Tensor& target, TensorList params, TensorList,
                                      const Tensor&, const Tensor&, const Tensor&, SymInt batch, Str activation,
                                      Str pooling, Str output, Str algorithm) {
  const Form form(epoch_name, activation, pooling, output);
  TORCH_CHECK(params.size() == form.parameters(), epoch_name, ": params must be the ", form.parameters(),
              " parameters of LeNet5 in their order, got ", params.size());
  check_algorithm(lenet::ladder, epoch_name, algorithm);
  const SymInt steps = (x.sym_size(0) + batch - 1) / batch;
  return {at::empty_symint({steps}, params[0].options()), at::empty_symint({steps}, target.options())};
}

// ---- Autograd

bool is_tracked(const Tensor& t) {
  return t.defined() && ((at::GradMode::is_enabled() && t.requires_grad()) || t._fw_grad(0).defined());
}

// With gradients the network is the layered one, whose operators have theirs; the rung of that name is the default
// then.
Tensor lenet5_autograd(c10::DispatchKeySet keys, const Tensor& x, TensorList params, Str activation, Str pooling,
                       Str output, Str algorithm) {
  bool tracked = is_tracked(x);
  for (const Tensor& p : params) tracked = tracked || is_tracked(p);
  if (!tracked) {
    static const auto handle = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow("torch_patterns::lenet5", "")
                                   .typed<Tensor(const Tensor&, TensorList, Str, Str, Str, Str)>();
    at::AutoDispatchBelowAutograd below;
    return handle.redispatch(keys & c10::after_autograd_keyset, x, params, activation, pooling, output, algorithm);
  }
  const Form form(name, activation, pooling, output);
  check_parameters(name, "params", x, params, form);
  check_images(name, x, params);
  check_algorithm(lenet::ladder, name, algorithm);
  TORCH_CHECK_VALUE(algorithm == "auto" || algorithm == lenet::ladder[0].name, name, ": algorithm '",
                    std::string(algorithm), "' gives no gradients; train with lenet5_train_step, or choose '",
                    lenet::ladder[0].name, "'");
  LayeredNetwork network{form, params.vec()};
  return network.forward(normalized(x, params[0].scalar_type()));
}

void refuse_tracked(const char* op, std::initializer_list<TensorList> lists) {
  for (const TensorList list : lists) {
    for (const Tensor& t : list) {
      TORCH_CHECK(!is_tracked(t), op,
                  ": computes its own gradients and changes parameters in place; call it under "
                  "torch.no_grad(), or with tensors that do not require grad");
    }
  }
}

template <class Result, class... Last>
struct Mutating {
  using Signature = Result(const Tensor&, const Tensor&, TensorList, TensorList, const Tensor&, const Tensor&,
                           const Tensor&, Last...);
  template <const char* const& op_name>
  static Result redispatch(c10::DispatchKeySet keys, const Tensor& x, const Tensor& target, TensorList params,
                           TensorList momenta, const Tensor& lr, const Tensor& momentum, const Tensor& weight_decay,
                           Last... last) {
    static const auto handle = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow((std::string("torch_patterns::") + op_name).c_str(), "")
                                   .template typed<Signature>();
    return handle.redispatch(keys, x, target, params, momenta, lr, momentum, weight_decay, last...);
  }

  template <const char* const& op_name>
  static Result autograd(c10::DispatchKeySet keys, const Tensor& x, const Tensor& target, TensorList params,
                         TensorList momenta, const Tensor& lr, const Tensor& momentum, const Tensor& weight_decay,
                         Last... last) {
    refuse_tracked(op_name,
                   {TensorList(x), params, momenta, TensorList(lr), TensorList(momentum), TensorList(weight_decay)});
    at::AutoDispatchBelowAutograd below;
    return redispatch<op_name>(keys & c10::after_autograd_keyset, x, target, params, momenta, lr, momentum,
                               weight_decay, last...);
  }

  // Nothing else tells views and saved tensors that the parameters changed.
  template <const char* const& op_name>
  static Result in_place(c10::DispatchKeySet keys, const Tensor& x, const Tensor& target, TensorList params,
                         TensorList momenta, const Tensor& lr, const Tensor& momentum, const Tensor& weight_decay,
                         Last... last) {
    Result result = [&] {
      at::AutoDispatchBelowADInplaceOrView below;
      return redispatch<op_name>(keys & c10::after_ADInplaceOrView_keyset, x, target, params, momenta, lr, momentum,
                                 weight_decay, last...);
    }();
    for (const TensorList list : {params, momenta}) {
      for (const Tensor& t : list) torch::autograd::impl::bump_version(t);
    }
    return result;
  }
};
using Step = Mutating<Tensor, Str, Str, Str, Str>;
using Epoch = Mutating<std::tuple<Tensor, Tensor>, SymInt, Str, Str, Str, Str>;

std::tuple<Tensor, Tensor> epoch_kernel_symbolic(const Tensor& x, const Tensor& target, TensorList params,
                                                 TensorList momenta, const Tensor& lr, const Tensor& momentum,
                                                 const Tensor& weight_decay, SymInt batch, Str activation, Str pooling,
                                                 Str output, Str algorithm) {
  return epoch_kernel(x, target, params, momenta, lr, momentum, weight_decay, batch.guard_int(__FILE__, __LINE__),
                      activation, pooling, output, algorithm);
}

#define TP_FORM "str activation=\"tanh\", str pooling=\"subsample\", str output=\"linear\", str algorithm=\"auto\""
#define TP_TRAINED                                                                                          \
  "Tensor x, Tensor target, Tensor(a!)[] params, Tensor(b!)[] momenta, Tensor lr, Tensor momentum, Tensor " \
  "weight_decay, "

void register_kernels(torch::Library& m) {
  m.impl(name, &lenet5_kernel);
  m.impl(step_name, &step_kernel);
  m.impl(epoch_name, &epoch_kernel_symbolic);
  m.impl(minibatches_name, &minibatches_kernel);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def("lenet5(Tensor x, Tensor[] params, " TP_FORM ") -> Tensor", tags);
  m.def("lenet5_train_step(" TP_TRAINED TP_FORM ") -> Tensor", tags);
  m.def("lenet5_train_epoch(" TP_TRAINED "SymInt batch, " TP_FORM ") -> (Tensor, Tensor)", tags);
  m.def(
      "lenet5_minibatches(Tensor images, Tensor target, Tensor seed, Tensor epoch, bool shuffle=True, bool "
      "distort=True)"
      " -> (Tensor, Tensor)",
      tags);
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) {
  m.impl(name, &lenet5_meta);
  m.impl(step_name, &step_meta);
  m.impl(epoch_name, &epoch_meta);
  m.impl(minibatches_name, &minibatches_meta);
}
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) {
  m.impl(name, &lenet5_autograd);
  m.impl(step_name, &Step::autograd<step_name>);
  m.impl(epoch_name, &Epoch::autograd<epoch_name>);
  m.impl(minibatches_name, torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(torch_patterns, ADInplaceOrView, m) {
  m.impl(step_name, &Step::in_place<step_name>);
  m.impl(epoch_name, &Epoch::in_place<epoch_name>);
}

}  // namespace
}  // namespace tp
