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
    TORCH_CHECK(p.sym_sizes() == c10::fromIntArrayRefSlow(shapes[i]), op, ": ", which, " must have shape ",
                at::IntArrayRef(shapes[i]), ", got ", p.sym_sizes());
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

#define TP_FORM "str activation=\"tanh\", str pooling=\"subsample\", str output=\"linear\", str algorithm=\"auto\""
#define TP_TRAINED                                                                                          \
  "Tensor x, Tensor target, Tensor(a!)[] params, Tensor(b!)[] momenta, Tensor lr, Tensor momentum, Tensor " \
  "weight_decay, "

struct Lenet5 {
  static constexpr auto schema = "lenet5(Tensor x, Tensor[] params, " TP_FORM ") -> Tensor";
  Tensor x;
  Tensors params;
  Str activation, pooling, output, algorithm;

  Tensor kernel() const;
  Tensor layered() const;
  Form check() const;
};

struct TrainStep {
  static constexpr auto schema = "lenet5_train_step(" TP_TRAINED TP_FORM ") -> Tensor";
  Tensor x, target;
  Tensors params, momenta;
  Tensor lr, momentum, weight_decay;
  Str activation, pooling, output, algorithm;

  Tensor kernel() const;
};

struct TrainEpoch {
  static constexpr auto schema = "lenet5_train_epoch(" TP_TRAINED "SymInt batch, " TP_FORM ") -> (Tensor, Tensor)";
  Tensor x, target;
  Tensors params, momenta;
  Tensor lr, momentum, weight_decay;
  SymInt batch;
  Str activation, pooling, output, algorithm;

  std::tuple<Tensor, Tensor> kernel() const;
};

#undef TP_TRAINED
#undef TP_FORM

Form Lenet5::check() const {
  const Form form(name, activation, pooling, output);
  check_parameters(name, "params", x, params, form);
  check_images(name, x, params);
  check_algorithm(lenet::ladder, name, algorithm);
  return form;
}

Tensor Lenet5::kernel() const {
  const Form form = check();
  Tensor out = empty_result({x.sym_size(0), lenet::classes}, params[0].options());
  if (out.is_meta()) return out;
  const Tensor images = x.contiguous();
  Tensors weights;
  for (const Tensor& p : params) weights.push_back(p.contiguous());
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

  void check(const char* op, const Tensor& x, const Tensor& weight, const SymInt& steps) const {
    const auto one = [&](const char* which, const Tensor& t, bool per_step) {
      check_same_device(op, {{"x", &x}, {which, &t}});
      TORCH_CHECK_TYPE(t.scalar_type() == weight.scalar_type(), op, ": ", which, " must be, like the parameters, ",
                       weight.scalar_type(), ", got ", t.scalar_type());
      TORCH_CHECK(t.dim() == 0 || (per_step && t.dim() == 1 && t.sym_size(0) == steps), op, ": ", which,
                  per_step ? " must be a 0-D tensor, or one number per step" : " must be a 0-D tensor", ", got shape ",
                  t.sym_sizes());
    };
    one("lr", lr, true);
    one("momentum", momentum, false);
    one("weight_decay", weight_decay, false);
  }
};

// Runs one step after another over minibatches of `batch` images, and returns losses and hits, one per step.
template <class Op>
std::tuple<Tensor, Tensor> train(const char* op, const Op& t, const SymInt& batch) {
  const Tensor &x = t.x, &target = t.target;
  const Tensors &params = t.params, &momenta = t.momenta;
  const Form form(op, t.activation, t.pooling, t.output);
  check_parameters(op, "params", x, params, form);
  check_parameters(op, "momenta", x, momenta, form);
  check_images(op, x, params);
  check_same_device(op, {{"x", &x}, {"target", &target}});
  TORCH_CHECK_TYPE(target.scalar_type() == at::kLong, op, ": target must be int64, got ", target.scalar_type());
  TORCH_CHECK(target.dim() == 1 && target.sym_size(0) == x.sym_size(0), op, ": target must have shape [", x.sym_size(0),
              "], one class per image, got ", target.sym_sizes());
  TORCH_CHECK(batch >= 1, op, ": batch must be positive, got ", batch);
  for (const Tensors& list : {params, momenta}) {
    for (const Tensor& p : list) TORCH_CHECK(p.is_contiguous(), op, ": parameters and momenta must be contiguous");
  }
  TORCH_CHECK_TYPE(momenta[0].scalar_type() == params[0].scalar_type(), op, ": params are ", params[0].scalar_type(),
                   ", momenta ", momenta[0].scalar_type());
  const SymInt number = (x.sym_size(0) + batch - 1) / batch;
  const Hyperparameters h{t.lr, t.momentum, t.weight_decay};
  h.check(op, x, params[0], number);
  Tensor losses = empty_result({number}, params[0].options()), hits = empty_result({number}, target.options());
  if (x.is_meta()) {
    check_algorithm(lenet::ladder, op, t.algorithm);
    return {losses, hits};
  }
  const int64_t steps = losses.size(0), most = batch.expect_int();
  const Tensor images = x.contiguous(), labels = target.contiguous(), lr = h.lr.contiguous();
  auto args = args_of(op, images, params, form);
  args.train = true;
  args.batch = most;
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
      const int64_t first = step * most, count = min(most, images.size(0) - first);
      const Tensor minibatch = normalized(images.narrow(0, first, count), params[0].scalar_type());
      const Tensor wanted = labels.narrow(0, first, count);
      LayeredNetwork network{form, params};
      network.forward(minibatch);
      Tensor grad;
      losses[step].copy_(network.loss(wanted, grad));
      hits[step].copy_(network.out.argmax(1).eq(wanted).sum());
      const Tensors grads = network.backward(grad);
      descend(params, momenta, grads, lr.dim() == 0 ? lr : lr[step], h.momentum, h.weight_decay);
    }
  };
  run(lenet::ladder, lenet::choose, op, t.algorithm, images, args);
  return {losses, hits};
}

Tensor TrainStep::kernel() const {
  TORCH_CHECK_VALUE(x.dim() > 0 && TORCH_GUARD_OR_TRUE(x.sym_size(0).sym_gt(0)), step_name,
                    ": a step needs at least one image");
  TORCH_CHECK(lr.dim() == 0, step_name, ": lr must be a 0-D tensor, got shape ", lr.sym_sizes());
  const Tensor losses = std::get<0>(train(step_name, *this, x.sym_size(0)));
  return losses.is_meta() ? empty_result({}, losses.options()) : losses.squeeze(0).clone();
}

std::tuple<Tensor, Tensor> TrainEpoch::kernel() const { return train(epoch_name, *this, batch); }

// ---- Autograd

bool is_tracked(const Tensor& t) {
  return t.defined() && ((at::GradMode::is_enabled() && t.requires_grad()) || t._fw_grad(0).defined());
}

bool any_is_tracked(Rules::Args args) {
  bool found = false;
  for (const IValue& v : args) {
    if (v.isTensor()) found = found || is_tracked(v.toTensor());
    if (!v.isTensorList()) continue;
    for (const Tensor& t : v.toTensorVector()) found = found || is_tracked(t);
  }
  return found;
}

// If gradients are needed, the layered network computes the outputs, because its operators have derivatives; the rung
// `layers` is then the default.
Tensor Lenet5::layered() const {
  const Form form = check();
  TORCH_CHECK_VALUE(algorithm == "auto" || algorithm == lenet::ladder[0].name, name, ": algorithm '",
                    std::string(algorithm), "' gives no gradients; train with lenet5_train_step, or choose '",
                    lenet::ladder[0].name, "'");
  LayeredNetwork network{form, params};
  return network.forward(normalized(x, params[0].scalar_type()));
}

void lenet5_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t n = op.schema().arguments().size();
  if (!any_is_tracked(torch::jit::last(*stack, n))) return pass_autograd(op, keys, stack);
  on_stack(stack, n, [](Rules::Args args) { return unboxed<Lenet5>(args).layered(); });
}

void train_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  TORCH_CHECK(!any_is_tracked(torch::jit::last(*stack, op.schema().arguments().size())),
              std::strchr(op.schema().name().c_str(), ':') + 2,
              ": computes its own gradients and changes parameters in place; call it under torch.no_grad(), or with "
              "tensors that do not require grad");
  at::AutoDispatchBelowAutograd below;
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

// Without this, views and saved tensors would not notice that the parameters changed.
void train_in_place(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  Tensors changed;
  for (const IValue& v : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (!v.isTensorList()) continue;
    for (Tensor& t : v.toTensorVector()) changed.push_back(std::move(t));
  }
  {
    at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
  }
  for (const Tensor& t : changed) {
    if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
  }
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  define_kernel<Lenet5>(m);
  define_kernel<TrainStep>(m);
  define_kernel<TrainEpoch>(m);
  implement<&lenet5_autograd>(m, name, c10::DispatchKey::Autograd);
  for (const char* op : {step_name, epoch_name}) {
    implement<&train_autograd>(m, op, c10::DispatchKey::Autograd);
    implement<&train_in_place>(m, op, c10::DispatchKey::ADInplaceOrView);
  }
}

}  // namespace
}  // namespace tp
