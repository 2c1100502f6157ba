#include "torch/operator.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

namespace tp {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// torch counts references to Nodes by std::shared_ptr up to version 2.11, and by c10::intrusive_ptr in newer ones.
using NodePointer = std::decay_t<decltype(std::declval<torch::autograd::Edge>().function)>;

template <class T, class Pointer>
struct Make {
  static auto make() { return c10::make_intrusive<T>(); }
};
template <class T>
struct Make<T, std::shared_ptr<Node>> {
  static auto make() {
    return std::shared_ptr<T>(new T(), [](auto* node) { deleteNode(node); });
  }
};

// Calls f(tensor) for every tensor among the arguments, in order. An absent optional tensor counts as an undefined one.
template <class F>
void each_tensor(const c10::FunctionSchema& schema, at::ArrayRef<IValue> args, F f) {
  static const Tensor absent;
  for (size_t i = 0; i < args.size(); ++i) {
    const IValue& v = args[i];
    if (v.isTensor()) {
      f(v.toTensor());
    } else if (v.isTensorList()) {
      for (const Tensor& t : v.toTensorVector()) f(t);
    } else if (v.isNone() && schema.arguments()[i].type()->isSubtypeOf(*c10::OptionalType::ofTensor())) {
      f(absent);
    }
  }
}

// Returns the arguments with their tensors replaced by `tensors`, in the order of each_tensor.
std::vector<IValue> with_tensors(const c10::FunctionSchema& schema, at::ArrayRef<IValue> args, const Tensors& tensors) {
  std::vector<IValue> result(args.begin(), args.end());
  size_t next = 0;
  for (size_t i = 0; i < args.size(); ++i) {
    IValue& v = result[i];
    if (v.isTensor()) {
      v = tensors[next++];
    } else if (v.isTensorList()) {
      const size_t n = v.toTensorList().size();
      v = box(Tensors(tensors.begin() + int64_t(next), tensors.begin() + int64_t(next + n)));
      next += n;
    } else if (v.isNone() && schema.arguments()[i].type()->isSubtypeOf(*c10::OptionalType::ofTensor())) {
      ++next;
    }
  }
  return result;
}

bool differentiable(const Tensor& t) { return t.defined() && torch::autograd::isDifferentiableType(t.scalar_type()); }

// Whether reverse mode (in_reverse) or forward mode (in_forward) needs the derivative of a tensor.
bool in_reverse(const Tensor& t) { return t.defined() && at::GradMode::is_enabled() && t.requires_grad(); }
bool in_forward(const Tensor& t) { return t.defined() && t._fw_grad(0).defined(); }

// The node of the autograd graph that records one call for reverse mode.
struct Call : torch::autograd::TraceableFunction {
  const Rules* rules = nullptr;
  std::optional<c10::OperatorHandle> op;
  std::vector<IValue> args;  // the arguments; their tensors are in `inputs`
  std::vector<SavedVariable> inputs, outputs;
  SavedVariable recorded;
  std::vector<std::vector<SymInt>> sizes;
  bool released = false;

  std::string name() const override { return op->schema().name() + "Backward"; }

  void release_variables() override {
    for (auto* list : {&inputs, &outputs}) {
      for (SavedVariable& saved : *list) saved.reset_data();
    }
    recorded.reset_data();
    released = true;
  }

  // Saves the arguments: the tensors that vjp will read, and the sizes of all.
  void keep(at::ArrayRef<IValue> given, const Tensors& tensors) {
    inputs.reserve(tensors.size());
    sizes.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& t = tensors[i];
      const bool kept = t.defined() && rules->keeps(*op, given, i);
      inputs.emplace_back(kept ? t : Tensor(), false);
      sizes.push_back(t.defined() ? t.sym_sizes().vec() : std::vector<SymInt>());
    }
    args = with_tensors(op->schema(), given, Tensors(tensors.size()));
  }

  variable_list apply(variable_list&& grads) override {
    const size_t n = inputs.size();
    TORCH_CHECK(!released, torch::autograd::ERR_BACKWARD_TWICE);
    if (std::none_of(grads.begin(), grads.end(), [](const Tensor& g) { return g.defined(); })) return variable_list(n);
    Tensors tensors, results;
    for (const SavedVariable& saved : inputs) tensors.push_back(saved.unpack());
    for (const SavedVariable& saved : outputs) results.push_back(saved.unpack(getptr()));
    const auto wanted = [&](size_t i) { return task_should_compute_output(i); };
    const Backward backward(grads, results, recorded.unpack(), sizes, wanted);
    const NoAutocast guard;
    variable_list found = rules->vjp(*op, with_tensors(op->schema(), args, tensors), backward);
    found.resize(n);
    for (size_t i = 0; i < n; ++i) {
      if (!wanted(i)) found[i] = Tensor();
    }
    return found;
  }
};

// Calls the kernels below autograd.
void call_below(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
}

Tensor primal_of(const Tensor& t) { return in_forward(t) ? t._fw_primal(0) : t; }

// Computes the tangents of the results by jvp and attaches them.
void set_tangents(const c10::OperatorHandle& op, at::ArrayRef<IValue> args, const Rules& rules, const Tensors& inputs,
                  const Tensors& results, const Tensor& recorded) {
  Tensors primals, tangents;
  for (const Tensor& t : inputs) {
    primals.push_back(primal_of(t));
    tangents.push_back(t.defined() ? t._fw_grad(0) : Tensor());
  }
  const auto primal_args = with_tensors(op.schema(), args, primals);
  const NoAutocast guard;
  const Tensors found = rules.jvp(op, primal_args, Forward(primals, std::move(tangents), results, recorded));
  for (size_t i = 0; i < results.size() && i < found.size(); ++i) {
    if (found[i].defined() && differentiable(results[i])) results[i]._set_fw_grad(found[i], 0, false);
  }
}

}  // namespace

Tensor Forward::tangent_or_zero(size_t input) const {
  return tangents_[input].defined() ? tangents_[input] : at::zeros_like(primals_[input]);
}

Tensor plus(const Tensor& a, const Tensor& b) { return !a.defined() ? b : !b.defined() ? a : at::add(a, b); }

void pass_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  call_below(op, keys, stack);
}

// The Autograd kernel of every operator with derivatives. It decides which modes need the call, calls the kernels
// below, and records what a gradient will need.
void differentiate(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack, const Rules& rules) {
  const auto& schema = op.schema();
  bool reverse = false, forward = false;
  // Find out whether any tensor requires a gradient or carries a tangent. If none does, nothing is recorded.
  const auto given = torch::jit::last(*stack, schema.arguments().size());
  const auto look = [&](const Tensor& t) {
    reverse = reverse || in_reverse(t);
    forward = forward || in_forward(t);
  };
  for (const IValue& v : given) {
    if (v.isTensor()) {
      look(v.toTensor());
    } else if (v.isTensorList()) {
      for (const Tensor& t : v.toTensorVector()) look(t);
    }
  }
  if (!reverse && !forward) return call_below(op, keys, stack);

  const std::vector<IValue> args(given.begin(), given.end());
  Tensors inputs, results;
  inputs.reserve(args.size());
  results.reserve(schema.returns().size());
  each_tensor(schema, args, [&](const Tensor& t) { inputs.push_back(t); });
  Tensor recorded;
  // Compute the results. With `record`, other operators compute them, which stores a tensor for the derivatives.
  if (rules.record) {
    at::AutoDispatchBelowADInplaceOrView below;
    const NoAutocast guard;
    rules.record(stack, recorded);
  } else {
    call_below(op, keys, stack);
  }
  for (const IValue& v : torch::jit::last(*stack, schema.returns().size())) results.push_back(v.toTensor());
  if (std::none_of(results.begin(), results.end(), differentiable)) return;

  // Reverse mode: the node keeps the inputs that vjp reads, and becomes the grad_fn of each result that depends on one.
  const auto node = reverse ? Make<Call, NodePointer>::make() : decltype(Make<Call, NodePointer>::make())();
  if (reverse) {
    node->rules = &rules;
    node->op = op;
    node->set_next_edges(torch::autograd::collect_next_edges(inputs));
    node->keep(args, inputs);
    node->recorded = SavedVariable(recorded, false);
    for (size_t i = 0; i < results.size(); ++i) {
      bool recorded = false;
      for (size_t j = 0; differentiable(results[i]) && j < inputs.size(); ++j) {
        recorded = recorded || (in_reverse(inputs[j]) && (!rules.depends || rules.depends(op, args, i, j)));
      }
      torch::autograd::set_history(recorded ? results[i] : Tensor(), node);
    }
  }
  if (forward) set_tangents(op, args, rules, inputs, results, recorded);
  // Outputs are saved after the tangents are set: if a vjp is differentiated in forward mode, it reads the tangents
  // from the saved results.
  if (reverse) {
    node->outputs.reserve(results.size());
    for (size_t i = 0; i < results.size(); ++i) {
      node->outputs.emplace_back(rules.keeps_output(op, args, i) ? results[i] : Tensor(), true);
    }
  }
}

void cast_and_call(const c10::OperatorHandle& op, Stack* stack, Autocast policy, c10::DispatchKey key) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const auto device = key == c10::DispatchKey::AutocastCPU ? at::kCPU : at::kCUDA;
  const size_t n = op.schema().arguments().size();
  if (policy != Autocast::none) {
    const auto dtype = policy == Autocast::float32 ? at::kFloat : at::autocast::get_autocast_dtype(device);
    for (size_t i = stack->size() - n; i < stack->size(); ++i) {
      IValue& v = (*stack)[i];
      if (v.isTensor() && v.toTensor().defined() && v.toTensor().is_floating_point())
        v = at::autocast::cached_cast(dtype, v.toTensor(), device);
    }
  }
  op.callBoxed(stack);
}

}  // namespace tp
