// torch_patterns::lenet5 computes the network's outputs. lenet5_train_step and lenet5_train_epoch train by stochastic
// gradient descent, in place.
//
// lenet5 itself has no derivative: if one is needed, its Autograd kernel runs the layered network, whose operators have
// derivatives. Training computes its own gradients, so it refuses tensors that require grad. It reports its changes to
// autograd: the version of every parameter and momentum is incremented.
#include "lenet/lenet.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "torch/lenet_layers.h"

namespace tp {
namespace {

using lenet::Output;
using lenet::Pooling;
using TensorList = at::TensorList;

Pattern pattern("lenet5", lenet::ladder);

// ---- checks

const std::vector<int64_t> shapes[] = {{6, 1, 5, 5}, {6},       {16, 6, 5, 5}, {16},     {120, 16, 5, 5},
                                       {120},        {84, 120}, {84},          {10, 84}, {10}};

void check_parameters(const char* op, const char* name, const Tensor& x, TensorList params, const Form& form) {
  TORCH_CHECK(params.size() == form.parameters(), op, ": ", name, " must be the ", form.parameters(),
              " parameters of LeNet5 in their order, got ", params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    const Tensor& p = params[i];
    const std::string which = std::string(name) + "[" + std::to_string(i) + "]";
    check_same_device(op, {{"x", &x}, {which.c_str(), &p}});
    TORCH_CHECK(p.sizes() == at::IntArrayRef(shapes[i]), op, ": ", which, " must have shape ",
                at::IntArrayRef(shapes[i]), ", got ", p.sizes());
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

// ---- kernels: CPU and CUDA alike, in the dtype of the parameters, regardless of autocast

constexpr const char *name = "lenet5", *step_name = "lenet5_train_step", *epoch_name = "lenet5_train_epoch";

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
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
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

// Runs one step after another over minibatches of `batch` images, and returns losses and hits, one per step.
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
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
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

// If gradients are needed, the layered network computes the outputs, because its operators have derivatives; the rung
// `layers` is then the default.
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

  // Without this, views and saved tensors would not notice that the parameters changed.
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
      for (const Tensor& t : list) {
        if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
      }
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
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def("lenet5(Tensor x, Tensor[] params, " TP_FORM ") -> Tensor", tags);
  m.def("lenet5_train_step(" TP_TRAINED TP_FORM ") -> Tensor", tags);
  m.def("lenet5_train_epoch(" TP_TRAINED "SymInt batch, " TP_FORM ") -> (Tensor, Tensor)", tags);
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) {
  m.impl(name, &lenet5_meta);
  m.impl(step_name, &step_meta);
  m.impl(epoch_name, &epoch_meta);
}
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) {
  m.impl(name, &lenet5_autograd);
  m.impl(step_name, &Step::autograd<step_name>);
  m.impl(epoch_name, &Epoch::autograd<epoch_name>);
}
TORCH_LIBRARY_IMPL(torch_patterns, ADInplaceOrView, m) {
  m.impl(step_name, &Step::in_place<step_name>);
  m.impl(epoch_name, &Epoch::in_place<epoch_name>);
}

}  // namespace
}  // namespace tp
