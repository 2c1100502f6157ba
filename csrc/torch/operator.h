// The description of an operator, from which everything is registered. A struct holds the arguments of one call, in the
// order of the schema; its methods define what the library needs to know:
//
//   struct Scan {
//     static constexpr auto schema = "scan(Tensor x, int dim=-1, bool reverse=False) -> Tensor";
//     Tensor x;
//     int64_t dim;
//     bool reverse;
//
//     Tensor kernel() const;                     // CPU, CUDA and Meta: checks, allocates the result, runs a rung
//     Tensors vjp(const Backward& b) const;      // reverse mode: the gradient of each tensor argument
//     Tensors jvp(const Forward& f) const;       // forward mode: the tangent of each result
//     bool keeps(size_t input) const;            // whether vjp reads this tensor argument (if absent: it does)
//     bool keeps_output(size_t output) const;    // whether vjp reads this result (if absent: it does not)
//     bool depends(size_t output, size_t input) const;  // on this argument, in the sense of vjp (if absent: it does)
//     Autocast autocast() const;                 // what runs in which precision under autocast (if absent: as given)
//   };
//   TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<Scan>(m); }
//
// TP_DIFFERENTIABLE(Tensor) declares the first three, for an operator that returns a Tensor; TP_LINEAR(Tensor) also
// defines jvp, for an operator that is linear in each tensor argument.
//
// A Meta tensor has sizes, which may be symbols, and a dtype, but no data. So a kernel checks and allocates by sym_size
// and sym_sizes, and returns its result if that is_done (glue.h), before anything else.
//
// An operator whose derivatives need more than its kernel returns has a method `record(Tensor& recorded) const`: if a
// derivative is needed, it computes the results by other operators instead, and stores a tensor for vjp and jvp.
//
// define() registers everything; call(Scan{x, 0, true}) calls the operator through the dispatcher, as Python does. vjp
// and jvp are written with calls and torch's own operators, which dispatch again. So one formula serves reverse and
// forward mode of every order, torch.func, vmap of them, tracing, TorchScript and C++.
//
// The graph is built as in torch's generated code: one Node per call keeps what vjp reads, and the results carry their
// tangents. (torch::autograd::Function supports neither forward mode nor torch.func.)
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <tuple>

#include "torch/glue.h"

// Declare the methods that every differentiable operator has.
#define TP_DIFFERENTIABLE(...)          \
  __VA_ARGS__ kernel() const;           \
  Tensors vjp(const Backward& b) const; \
  Tensors jvp(const Forward& f) const
#define TP_LINEAR(...)                  \
  __VA_ARGS__ kernel() const;           \
  Tensors vjp(const Backward& b) const; \
  Tensors jvp(const Forward& f) const { return {tangent_of_linear(*this, f)}; }

namespace tp {

using c10::IValue;
using c10::SymInt;
using c10::SymIntArrayRef;
using OptionalTensor = std::optional<Tensor>;
using Tensors = std::vector<Tensor>;
using torch::jit::Stack;

// The dtype to which autocast casts floating-point arguments: none keeps them, float32 always means float32, and lower
// means the dtype that the user chose for autocast.
enum class Autocast { none, float32, lower };

// The input of a vjp. Tensor arguments are numbered in the order of the schema; each tensor of a Tensor[] has its own
// number.
class Backward {
 public:
  Backward(const Tensors& grads, const Tensors& outputs, Tensor recorded, const std::vector<std::vector<SymInt>>& sizes,
           std::function<bool(size_t)> wanted)
      : grads_(grads), outputs_(outputs), recorded_(std::move(recorded)), sizes_(sizes), wanted_(std::move(wanted)) {}

  // The gradient of a result, undefined if that result has none. At least one result has a gradient.
  const Tensor& grad(size_t output = 0) const { return grads_[output]; }
  // A result that keeps_output selected.
  const Tensor& output(size_t output = 0) const { return outputs_[output]; }
  // The tensor that `record` stored.
  const Tensor& recorded() const { return recorded_; }
  // Whether the gradient of a tensor argument is needed.
  bool wants(size_t input) const { return wanted_(input); }
  // The sizes of a tensor argument; they are known even where the tensor itself was not kept.
  SymIntArrayRef sizes(size_t input) const { return sizes_[input]; }

 private:
  const Tensors &grads_, &outputs_;
  Tensor recorded_;
  const std::vector<std::vector<SymInt>>& sizes_;
  std::function<bool(size_t)> wanted_;
};

// The input of a jvp. The struct's own tensors are the primals.
class Forward {
 public:
  Forward(Tensors primals, Tensors tangents, Tensors outputs, Tensor recorded)
      : primals_(std::move(primals)),
        tangents_(std::move(tangents)),
        outputs_(std::move(outputs)),
        recorded_(std::move(recorded)) {}

  // The tangent of a tensor argument; undefined means zero. At least one is defined.
  const Tensor& tangent(size_t input = 0) const { return tangents_[input]; }
  Tensor tangent_or_zero(size_t input) const;
  const Tensor& output(size_t output = 0) const { return outputs_[output]; }
  const Tensor& recorded() const { return recorded_; }

 private:
  Tensors primals_, tangents_, outputs_;
  Tensor recorded_;
};

// The sum of two terms of a tangent or gradient; undefined means zero.
Tensor plus(const Tensor& a, const Tensor& b);

// ---- between an operator's struct and the arguments on the interpreter's stack

inline void unbox(Tensor& to, const IValue& v) {
  if (!v.isNone()) to = v.toTensor();
}
inline void unbox(OptionalTensor& to, const IValue& v) {
  if (!v.isNone() && v.toTensor().defined()) to = v.toTensor();
}
// AOTInductor passes an empty list as None.
inline void unbox(Tensors& to, const IValue& v) {
  if (!v.isNone()) to = v.toTensorVector();
}
inline void unbox(int64_t& to, const IValue& v) { to = v.toInt(); }
inline void unbox(bool& to, const IValue& v) { to = v.toBool(); }
inline void unbox(double& to, const IValue& v) { to = v.toDouble(); }
inline void unbox(Str& to, const IValue& v) { to = v.toStringView(); }
inline void unbox(SymInt& to, const IValue& v) { to = v.toSymInt(); }
inline void unbox(at::Scalar& to, const IValue& v) { to = v.toScalar(); }
inline void unbox(at::ScalarType& to, const IValue& v) { to = v.toScalarType(); }
inline void unbox(std::vector<int64_t>& to, const IValue& v) {
  if (!v.isNone()) to = v.toIntVector();
}
inline void unbox(std::vector<SymInt>& to, const IValue& v) {
  if (!v.isNone()) to = v.toSymIntVector();
}
template <class T>
void unbox(std::optional<T>& to, const IValue& v) {
  if (!v.isNone()) unbox(to.emplace(), v);
}

inline IValue box(Str s) { return IValue(std::string(s)); }
inline IValue box(const Tensors& list) { return IValue(at::List<Tensor>(at::ArrayRef<Tensor>(list))); }
inline IValue box(const std::vector<SymInt>& list) { return IValue(SymIntArrayRef(list)); }
template <class T>
IValue box(const T& value) {
  return IValue(value);
}
template <class T>
IValue box(const std::optional<T>& value) {
  return value ? box(*value) : IValue();
}

inline void push(Stack& stack, Tensor result) { stack.emplace_back(std::move(result)); }
template <class... T>
void push(Stack& stack, std::tuple<T...> results) {
  std::apply([&](auto&... result) { (push(stack, std::move(result)), ...); }, results);
}

inline void pop(Stack& stack, Tensor& result) { result = std::move(stack[0]).toTensor(); }
template <class... T>
void pop(Stack& stack, std::tuple<T...>& results) {
  size_t i = 0;
  std::apply([&](auto&... result) { ((result = std::move(stack[i++]).toTensor()), ...); }, results);
}

// How many arguments a schema has.
constexpr size_t count_arguments(const char* schema) {
  while (*schema != '(') ++schema;
  size_t count = schema[1] != ')';
  bool quoted = false;
  for (int depth = 1; depth > 0;) {
    const char c = *++schema;
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == '(' || c == '[') ++depth;
    if (c == ')' || c == ']') --depth;
    count += depth == 1 && c == ',';
  }
  return count;
}

// A tuple of references to the fields of an operator's struct, one per argument of its schema.
template <class Op>
auto fields(Op& op) {
  constexpr size_t n = count_arguments(Op::schema);
#define TP_FIELDS(count, ...)     \
  if constexpr (n == count) {     \
    auto& [__VA_ARGS__] = op;     \
    return std::tie(__VA_ARGS__); \
  } else
  TP_FIELDS(1, a)
  TP_FIELDS(2, a, b)
  TP_FIELDS(3, a, b, c)
  TP_FIELDS(4, a, b, c, d)
  TP_FIELDS(5, a, b, c, d, e)
  TP_FIELDS(6, a, b, c, d, e, f)
  TP_FIELDS(7, a, b, c, d, e, f, g)
  TP_FIELDS(8, a, b, c, d, e, f, g, h)
  TP_FIELDS(9, a, b, c, d, e, f, g, h, i)
  TP_FIELDS(10, a, b, c, d, e, f, g, h, i, j)
  TP_FIELDS(11, a, b, c, d, e, f, g, h, i, j, k)
  TP_FIELDS(12, a, b, c, d, e, f, g, h, i, j, k, l)
  TP_FIELDS(13, a, b, c, d, e, f, g, h, i, j, k, l, m)
  TP_FIELDS(14, a, b, c, d, e, f, g, h, i, j, k, l, m, o)
  TP_FIELDS(15, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p)
  TP_FIELDS(16, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q)
  static_assert(n <= 16, "add a line for operators of more arguments");
#undef TP_FIELDS
}

template <class Op>
Op unboxed(at::ArrayRef<IValue> args) {
  Op op{};
  size_t i = 0;
  std::apply([&](auto&... field) { (unbox(field, args[i++]), ...); }, fields(op));
  return op;
}

// The name in a schema: "scan" of "scan(Tensor x, ...". Schemas of other namespaces than torch_patterns name theirs.
inline std::string name_of(const char* schema) { return std::string(schema, std::strchr(schema, '(')); }
inline std::string name_with_namespace(const char* schema) {
  const std::string name = name_of(schema);
  return name.find("::") == std::string::npos ? "torch_patterns::" + name : name;
}

// Calls the operator through the dispatcher, as Python does.
template <class Op>
auto call(const Op& op) {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(name_with_namespace(Op::schema).c_str(), "");
  Stack stack;
  stack.reserve(count_arguments(Op::schema));
  std::apply([&](const auto&... field) { (stack.push_back(box(field)), ...); }, fields(op));
  handle.callBoxed(stack);
  decltype(op.kernel()) result;
  pop(stack, result);
  return result;
}

// ---- registration

// The autograd rules of an operator, as functions of boxed arguments.
struct Rules {
  using Args = at::ArrayRef<IValue>;
  Tensors (*vjp)(const c10::OperatorHandle&, Args, const Backward&);
  Tensors (*jvp)(const c10::OperatorHandle&, Args, const Forward&);
  bool (*keeps)(const c10::OperatorHandle&, Args, size_t input);
  bool (*keeps_output)(const c10::OperatorHandle&, Args, size_t output);
  bool (*depends)(const c10::OperatorHandle&, Args, size_t output, size_t input) = nullptr;  // null: it always does
  void (*record)(Stack* stack, Tensor& recorded) = nullptr;                                  // null if absent
};

// The Autograd kernel of an operator with derivatives. It calls the kernels below it. If an argument requires a
// gradient, it records the call for reverse mode; if an argument carries a tangent, it sets the tangents of the
// results.
void differentiate(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack, const Rules& rules);
// The Autograd kernel of an operator without derivatives.
void pass_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);
// The Autocast kernel: casts floating-point arguments, then calls the kernels below it.
void cast_and_call(const c10::OperatorHandle& op, Stack* stack, Autocast policy, c10::DispatchKey key);

// Replaces the n arguments on the stack by f(arguments).
template <class F>
void on_stack(Stack* stack, size_t n, F f) {
  auto result = f(torch::jit::last(*stack, n));
  torch::jit::drop(*stack, n);
  push(*stack, std::move(result));
}

// Kernels and formulas compute in the dtypes of their arguments, which the Autocast kernel has chosen. With autocast
// on, torch's operators would round what they compute in float32, and refuse to join tensors of another half type.
// Below the transforms of torch.func a formula of forward mode runs with autocast all the same.
struct NoAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

template <class Op>
void run_kernel(const c10::OperatorHandle&, Stack* stack) {
  const NoAutocast guard;
  on_stack(stack, count_arguments(Op::schema), [](Rules::Args args) { return unboxed<Op>(args).kernel(); });
}

// Whether a struct has a method.
#define TP_HAS(method)                      \
  template <class Op, class = void>         \
  struct has_##method : std::false_type {}; \
  template <class Op>                       \
  struct has_##method<Op, std::void_t<decltype(&Op::method)>> : std::true_type {};
TP_HAS(vjp)
TP_HAS(keeps)
TP_HAS(keeps_output)
TP_HAS(depends)
TP_HAS(record)
TP_HAS(autocast)
TP_HAS(tags)
TP_HAS(validate)
#undef TP_HAS

// The tangent of an operator that is linear in each of its tensors: the sum of its results for one tangent at a time,
// undefined if there is none. What was validated in the call is not validated again.
template <class Op>
Tensor tangent_of_linear(Op op, const Forward& f) {
  if constexpr (has_validate<Op>::value) op.validate = false;
  Tensor sum;
  size_t number = 0;
  const auto add = [&](auto& field) {
    using Field = std::decay_t<decltype(field)>;
    if constexpr (std::is_same_v<Field, Tensor>) {
      const Tensor& tangent = f.tangent(number++);
      if (!tangent.defined()) return;
      const Tensor primal = std::exchange(field, tangent);
      sum = plus(sum, call(op));
      field = primal;
    } else if constexpr (std::is_same_v<Field, Tensors>) {
      number += field.size();
    } else {
      number += std::is_same_v<Field, OptionalTensor>;
    }
  };
  std::apply([&](auto&... field) { (add(field), ...); }, fields(op));
  return sum;
}

template <class Op>
constexpr auto recorder_of() -> decltype(Rules::record) {
  if constexpr (has_record<Op>::value) {
    return [](Stack* stack, Tensor& recorded) {
      on_stack(stack, count_arguments(Op::schema),
               [&](Rules::Args args) { return unboxed<Op>(args).record(recorded); });
    };
  }
  return nullptr;
}

template <class Op>
constexpr Rules rules_of = {
    [](const c10::OperatorHandle&, Rules::Args args, const Backward& b) { return unboxed<Op>(args).vjp(b); },
    [](const c10::OperatorHandle&, Rules::Args args, const Forward& f) { return unboxed<Op>(args).jvp(f); },
    [](const c10::OperatorHandle&, Rules::Args args, size_t input) {
      if constexpr (has_keeps<Op>::value) return unboxed<Op>(args).keeps(input);
      return true;
    },
    [](const c10::OperatorHandle&, Rules::Args args, size_t output) {
      if constexpr (has_keeps_output<Op>::value) return unboxed<Op>(args).keeps_output(output);
      return false;
    },
    [](const c10::OperatorHandle&, Rules::Args args, size_t output, size_t input) {
      if constexpr (has_depends<Op>::value) return unboxed<Op>(args).depends(output, input);
      return true;
    },
    recorder_of<Op>()};

template <class Op>
void run_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  differentiate(op, keys, stack, rules_of<Op>);
}

template <class Op, c10::DispatchKey key>
void run_autocast(const c10::OperatorHandle& op, Stack* stack) {
  const auto args = torch::jit::last(*stack, count_arguments(Op::schema));
  cast_and_call(op, stack, unboxed<Op>(args).autocast(), key);
}

template <auto* kernel>
void implement(torch::Library& m, const std::string& name, c10::DispatchKey key) {
  m.impl(name.c_str(), torch::dispatch(key, torch::CppFunction::makeFromBoxedFunction<kernel>()));
}

// Registers the schema and the kernel of an operator. An operator whose result size depends on data is tagged so; it
// has no Meta kernel, but a fake kernel in Python.
template <class Op>
void define_kernel(torch::Library& m) {
  const std::string name = name_of(Op::schema);
  std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  if constexpr (has_tags<Op>::value) tags.insert(tags.end(), Op::tags.begin(), Op::tags.end());
  m.def(torch::schema(Op::schema), {tags});  // the braces keep the vector from being taken for a kernel
  implement<&run_kernel<Op>>(m, name, c10::DispatchKey::CPU);
  implement<&run_kernel<Op>>(m, name, c10::DispatchKey::CUDA);
  if constexpr (!has_tags<Op>::value) implement<&run_kernel<Op>>(m, name, c10::DispatchKey::Meta);
}

// Registers everything: schema, CPU, CUDA and Meta kernels, Autograd and Autocast.
template <class Op>
void define_one(torch::Library& m) {
  const std::string name = name_of(Op::schema);
  define_kernel<Op>(m);
  if constexpr (has_vjp<Op>::value) {
    implement<&run_autograd<Op>>(m, name, c10::DispatchKey::Autograd);
  } else {
    implement<&pass_autograd>(m, name, c10::DispatchKey::Autograd);
  }
  if constexpr (has_autocast<Op>::value) {
    implement<&run_autocast<Op, c10::DispatchKey::AutocastCPU>>(m, name, c10::DispatchKey::AutocastCPU);
    implement<&run_autocast<Op, c10::DispatchKey::AutocastCUDA>>(m, name, c10::DispatchKey::AutocastCUDA);
  }
}

template <class... Ops>
void define(torch::Library& m) {
  (define_one<Ops>(m), ...);
}

}  // namespace tp
