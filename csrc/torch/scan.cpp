// torch_patterns::scan and torch_patterns::linear_recurrence: schema, checks, Meta, Autograd, Autocast.
//
// The gradients are scans again, so that every order of derivative exists and costs O(n):
//   sum        the transpose of a running sum is a running sum from the other end;
//   prod       grad x[j] = (product before j) * R[j], R[j] = g[j] + x[j+1] R[j+1]: a recurrence, so zeros need no care;
//   max, min   an element that takes the lead collects the gradients of the outputs that it leads:
//              R[j] = g[j] + k[j+1] R[j+1], where k = 0 ends a run: NaN stays in its run;
//   recurrence grad b = R, R[t] = g[t] + a[t+1] R[t+1]; grad a[t] = R[t] h[t-1].
#include "scan/scan.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include "torch/glue.h"

namespace tp {
namespace {

using c10::SymInt;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;

Pattern scan_pattern("scan", scan::ladder), recurrence_pattern("linear_recurrence", scan::ladder);

Tensor call_scan(const Tensor& x, int64_t dim, Str name, bool exclusive, bool reverse, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, int64_t, Str, bool, bool, Str)>("scan");
  return handle.call(x, dim, name, exclusive, reverse, algorithm);
}

Tensor call_recurrence(const Tensor& a, const Tensor& b, int64_t dim, const OptionalTensor& initial, bool reverse,
                       Str algorithm) {
  static const auto handle =
      op<Tensor(const Tensor&, const Tensor&, int64_t, const OptionalTensor&, bool, Str)>("linear_recurrence");
  return handle.call(a, b, dim, initial, reverse, algorithm);
}

// ---- kernels: CPU and CUDA alike

at::ScalarType scan_result(const Tensor& x, OpId op) {
  const bool widens =
      (op == OpId::sum || op == OpId::prod) && at::isIntegralType(x.scalar_type(), /*includeBool=*/true);
  return widens ? at::kLong : x.scalar_type();
}

// The lines of contiguous `x` along `dim`: [outer, n, inner].
void set_lines(scan::Args& args, const Tensor& x, int64_t dim) {
  args.outer = args.inner = 1;
  args.n = x.dim() ? x.size(dim) : 1;
  for (int64_t d = 0; d < dim; ++d) args.outer *= x.size(d);
  for (int64_t d = dim + 1; d < x.dim(); ++d) args.inner *= x.size(d);
}

Tensor scan_kernel(const Tensor& x, int64_t dim, Str name, bool exclusive, bool reverse, Str algorithm) {
  const OpId op = op_of("scan", name);
  dim = wrap_dim("scan", dim, x.dim());
  const Tensor in = x.contiguous();
  Tensor out = empty_result(in.sizes(), in.options().dtype(scan_result(in, op)));
  scan::Args args{};
  set_lines(args, in, dim);
  args.in = in.const_data_ptr();
  args.out = out.mutable_data_ptr();
  args.dtype = dtype_of_tensor("scan", in);
  args.op = op;
  args.exclusive = exclusive;
  args.reverse = reverse;
  if (out.numel() == 0) {
    check_algorithm(scan::ladder, "scan", algorithm);
  } else {
    run(scan::ladder, scan::choose, "scan", algorithm, in, args);
  }
  return out;
}

// a and b at one shape and dtype, `initial` at that shape without `dim`.
struct Recurrence {
  Tensor a, b;
  OptionalTensor initial;
  int64_t dim;
};

template <class F>
auto broadcast_or_fail(F f, const Tensor& a, const Tensor& other, const char* name) {
  try {
    return f();
  } catch (const c10::Error&) {
    TORCH_CHECK(false, "linear_recurrence: the sizes ", a.sym_sizes(), " of a and b and ", other.sym_sizes(), " of ",
                name, " do not fit together");
  }
}

Recurrence broadcast(const Tensor& a, const Tensor& b, int64_t dim, const OptionalTensor& initial) {
  check_same_device("linear_recurrence", {{"a", &a}, {"b", &b}});
  if (initial) check_same_device("linear_recurrence", {{"a", &a}, {"initial", &*initial}});
  auto dtype = at::result_type(a, b);
  if (initial) dtype = at::promote_types(dtype, initial->scalar_type());
  TORCH_CHECK_TYPE(at::isFloatingType(dtype), "linear_recurrence: dtype ", dtype,
                   " is not supported; supported: floating point");
  const auto both = broadcast_or_fail([&] { return at::broadcast_tensors({a.to(dtype), b.to(dtype)}); }, a, b, "b");
  Recurrence r{both[0], both[1], {}, wrap_dim("linear_recurrence", dim, both[0].dim())};
  TORCH_CHECK(r.b.dim() > 0, "linear_recurrence: a and b need a dimension to run along, got scalars");
  if (initial) {
    auto shape = r.b.sym_sizes().vec();
    shape.erase(shape.begin() + r.dim);
    r.initial = broadcast_or_fail([&] { return initial->to(dtype).expand_symint(shape); }, r.b, *initial, "initial");
  }
  return r;
}

// `previous`: element k takes the multiplier of the element before it.
Tensor solve(const Tensor& a, const Tensor& b, int64_t dim, const OptionalTensor& initial, bool reverse, bool previous,
             Str algorithm) {
  const Recurrence r = broadcast(a, b, dim, initial);
  const Tensor factor = r.a.contiguous(), in = r.b.contiguous();
  const Tensor start = r.initial ? r.initial->contiguous() : Tensor();
  Tensor out = empty_result(in.sizes(), in.options());
  scan::Args args{};
  set_lines(args, in, r.dim);
  args.in = in.const_data_ptr();
  args.a = factor.const_data_ptr();
  args.initial = start.defined() ? start.const_data_ptr() : nullptr;
  args.out = out.mutable_data_ptr();
  args.dtype = dtype_of_tensor("linear_recurrence", in);
  args.op = OpId::affine;
  args.reverse = reverse;
  args.previous = previous;
  if (out.numel() == 0) {
    check_algorithm(scan::ladder, "linear_recurrence", algorithm);
  } else {
    run(scan::ladder, scan::choose, "linear_recurrence", algorithm, in, args);
  }
  return out;
}

Tensor recurrence_kernel(const Tensor& a, const Tensor& b, int64_t dim, const OptionalTensor& initial, bool reverse,
                         Str algorithm) {
  return solve(a, b, dim, initial, reverse, false, algorithm);
}

// ---- Meta

Tensor scan_meta(const Tensor& x, int64_t dim, Str name, bool, bool, Str algorithm) {
  const OpId op = op_of("scan", name);
  dtype_of_tensor("scan", x);
  wrap_dim("scan", dim, x.dim());
  check_algorithm(scan::ladder, "scan", algorithm);
  return at::empty_symint(x.sym_sizes(), x.options().dtype(scan_result(x, op)));
}

Tensor recurrence_meta(const Tensor& a, const Tensor& b, int64_t dim, const OptionalTensor& initial, bool,
                       Str algorithm) {
  const Recurrence r = broadcast(a, b, dim, initial);
  check_algorithm(scan::ladder, "linear_recurrence", algorithm);
  return at::empty_symint(r.b.sym_sizes(), r.b.options());
}

// ---- Autograd

// y[k] = x[k + 1] in scan order, and 0 at the end of it.
Tensor next(const Tensor& x, int64_t dim, bool reverse) {
  const SymInt n = x.sym_size(dim);
  const Tensor end = at::zeros_like(x.narrow_symint(dim, 0, 1));
  return reverse ? at::cat({end, x.narrow_symint(dim, 0, n - 1)}, dim)
                 : at::cat({x.narrow_symint(dim, 1, n - 1), end}, dim);
}

// y[k] = x[k - 1] in scan order, and 0 at the start of it.
Tensor previous(const Tensor& x, int64_t dim, bool reverse) { return next(x, dim, !reverse); }

// Whether the formulas below may take a short way, which nobody can differentiate, trace or batch.
bool plain(const Tensor& x, const Tensor& y) {
  return !at::GradMode::is_enabled() && !x.is_meta() && !at::areAnyTensorSubclassLike({x, y});
}

// R[k] = g[k] + a[k + 1] R[k + 1] in scan order: the short way needs no shifted copy of a.
Tensor adjoint_of(const Tensor& a, const Tensor& g, int64_t dim, bool reverse, Str algorithm) {
  if (plain(a, g)) return solve(a, g, dim, {}, !reverse, true, algorithm);
  return call_recurrence(next(a, dim, reverse), g, dim, {}, !reverse, algorithm);
}

// y[k] = x[k] h[k - 1] in scan order, where h starts with `initial` or 0: the short way needs no shifted copy of h.
Tensor times_previous(const Tensor& x, const Tensor& h, const Tensor& initial, int64_t dim, bool reverse) {
  const SymInt n = h.sym_size(dim), first = reverse ? n - 1 : SymInt(0);
  const Tensor held = h.narrow_symint(dim, reverse ? 1 : 0, n - 1);
  if (plain(x, h)) {
    Tensor y = at::empty_like(x);
    Tensor others = y.narrow_symint(dim, reverse ? 0 : 1, n - 1), start = y.select_symint(dim, first);
    at::mul_out(others, x.narrow_symint(dim, reverse ? 0 : 1, n - 1), held);
    initial.defined() ? start.copy_(x.select_symint(dim, first) * initial) : start.zero_();
    return y;
  }
  const Tensor start = initial.defined() ? initial.unsqueeze(dim) : at::zeros_like(h.narrow_symint(dim, 0, 1));
  return x * (reverse ? at::cat({held, start}, dim) : at::cat({start, held}, dim));
}

Tensor prod_backward(const Tensor& g, const Tensor& x, int64_t dim, bool exclusive, bool reverse, Str algorithm) {
  const auto acc = at::toOpMathType(x.scalar_type());
  const Tensor wide = x.to(acc), from = exclusive ? next(g.to(acc), dim, reverse) : g.to(acc);
  const Tensor after = adjoint_of(wide, from, dim, reverse, algorithm);
  return (call_scan(wide, dim, "prod", true, reverse, algorithm) * after).to(x.scalar_type());
}

// h[k] = a[k] h[k - 1] + b[k] along `dim`, which starts anew wherever a is 0, and so at the start of every row.
Tensor recurrence_over_runs(const Tensor& a, const Tensor& b, int64_t dim, bool reverse) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, const Tensor&, bool, Str)>("segment_recurrence");
  SymInt rows = 1, inner = 1;
  for (int64_t d = 0; d < b.dim(); ++d) (d <= dim ? rows : inner) *= b.sym_size(d);
  const auto lines = [&](const Tensor& x) { return x.reshape_symint({rows, inner}); };
  const Tensor all = at::mul(at::arange(2, b.options().dtype(at::kLong)), c10::Scalar(rows));
  return handle.call(lines(a), lines(b), all, reverse, "auto").view_symint(b.sym_sizes());
}

Tensor extremum_backward(const Tensor& g, const Tensor& x, const Tensor& y, int64_t dim, Str name, bool exclusive,
                         bool reverse) {
  const auto acc = at::toOpMathType(x.scalar_type());
  const Tensor held = exclusive ? y : previous(y, dim, reverse);
  const Tensor keeps = ((name == "max" ? held >= x : held <= x) | held.isnan()).to(acc);
  const Tensor carries = next(keeps, dim, reverse);
  const Tensor from = exclusive ? next(g.to(acc), dim, reverse) : g.to(acc);
  const Tensor led = recurrence_over_runs(carries, from, dim, !reverse);
  const Tensor leads = previous(carries, dim, reverse) == 0;  // the first element always does
  return at::where(leads, led, at::zeros_like(led)).to(x.scalar_type());
}

struct ScanFunction : torch::autograd::Function<ScanFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, int64_t dim, std::string name, bool exclusive,
                        bool reverse, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    const Tensor y = call_scan(x, dim, name, exclusive, reverse, algorithm);
    ctx->saved_data["dim"] = wrap_dim("scan", dim, x.dim());
    ctx->saved_data["op"] = name;
    ctx->saved_data["exclusive"] = exclusive;
    ctx->saved_data["reverse"] = reverse;
    ctx->saved_data["algorithm"] = algorithm;
    if (name == "prod") ctx->save_for_backward({x});
    if (name == "max" || name == "min") ctx->save_for_backward({x, y});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& saved = ctx->saved_data;
    const auto tensors = ctx->get_saved_variables();
    const int64_t dim = saved.at("dim").toInt();
    const std::string name = saved.at("op").toStringRef(), algorithm = saved.at("algorithm").toStringRef();
    const bool exclusive = saved.at("exclusive").toBool(), reverse = saved.at("reverse").toBool();
    variable_list result(6);
    const Tensor& g = grads[0];
    if (!g.defined()) return result;
    if (name == "sum") {
      result[0] = call_scan(g, dim, "sum", exclusive, !reverse, algorithm);
    } else if (g.dim() == 0 || g.sym_numel() == 0) {  // one element, or none: nothing to shift
      result[0] = exclusive ? at::zeros_like(g) : g.clone();
    } else if (name == "prod") {
      result[0] = prod_backward(g, tensors[0], dim, exclusive, reverse, algorithm);
    } else {
      result[0] = extremum_backward(g, tensors[0], tensors[1], dim, name, exclusive, reverse);
    }
    return result;
  }
};

Tensor scan_autograd(const Tensor& x, int64_t dim, Str name, bool exclusive, bool reverse, Str algorithm) {
  return ScanFunction::apply(x, dim, std::string(name), exclusive, reverse, std::string(algorithm));
}

// a, b and initial at one shape already.
struct RecurrenceFunction : torch::autograd::Function<RecurrenceFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& a, const Tensor& b, int64_t dim,
                        const OptionalTensor& initial, bool reverse, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    const Tensor h = call_recurrence(a, b, dim, initial, reverse, algorithm);
    ctx->saved_data["dim"] = dim;
    ctx->saved_data["reverse"] = reverse;
    ctx->saved_data["algorithm"] = algorithm;
    ctx->save_for_backward({a, h, initial ? *initial : Tensor()});
    return h;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto tensors = ctx->get_saved_variables();
    const Tensor &a = tensors[0], &h = tensors[1], &initial = tensors[2];
    const int64_t dim = ctx->saved_data.at("dim").toInt();
    const bool reverse = ctx->saved_data.at("reverse").toBool();
    variable_list result(6);
    const Tensor& g = grads[0];
    if (!g.defined()) return result;
    if (g.sym_numel() == 0)
      return {at::zeros_like(a), g.clone(), Tensor(), initial.defined() ? at::zeros_like(initial) : Tensor(),
              Tensor(),          Tensor()};
    const std::string algorithm = ctx->saved_data.at("algorithm").toStringRef();
    const Tensor adjoint = adjoint_of(a, g, dim, reverse, algorithm);
    result[1] = adjoint;
    if (ctx->needs_input_grad(0)) result[0] = times_previous(adjoint, h, initial, dim, reverse);
    if (initial.defined()) {
      const SymInt first = reverse ? h.sym_size(dim) - 1 : SymInt(0);
      result[3] = a.select_symint(dim, first) * adjoint.select_symint(dim, first);
    }
    return result;
  }
};

Tensor recurrence_autograd(const Tensor& a, const Tensor& b, int64_t dim, const OptionalTensor& initial, bool reverse,
                           Str algorithm) {
  const Recurrence r = broadcast(a, b, dim, initial);  // differentiable: it sums the gradients back
  return RecurrenceFunction::apply(r.a, r.b, r.dim, r.initial, reverse, std::string(algorithm));
}

// ---- Autocast: scans run in and return float32

template <c10::DeviceType device, c10::DispatchKey key>
Tensor scan_autocast(const Tensor& x, int64_t dim, Str name, bool exclusive, bool reverse, Str algorithm) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  return call_scan(at::autocast::cached_cast(at::kFloat, x, device), dim, name, exclusive, reverse, algorithm);
}

template <c10::DeviceType device, c10::DispatchKey key>
Tensor recurrence_autocast(const Tensor& a, const Tensor& b, int64_t dim, const OptionalTensor& initial, bool reverse,
                           Str algorithm) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const auto cast = [](const Tensor& t) { return at::autocast::cached_cast(at::kFloat, t, device); };
  return call_recurrence(cast(a), cast(b), dim, initial ? OptionalTensor(cast(*initial)) : initial, reverse, algorithm);
}

template <c10::DeviceType device, c10::DispatchKey key>
void register_autocast(torch::Library& m) {
  m.impl("scan", &scan_autocast<device, key>);
  m.impl("linear_recurrence", &recurrence_autocast<device, key>);
}

void register_kernels(torch::Library& m) {
  m.impl("scan", &scan_kernel);
  m.impl("linear_recurrence", &recurrence_kernel);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  m.def(
      "scan(Tensor x, int dim=-1, str op=\"sum\", bool exclusive=False, bool reverse=False, str algorithm=\"auto\") -> "
      "Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "linear_recurrence(Tensor a, Tensor b, int dim=-1, Tensor? initial=None, bool reverse=False, str "
      "algorithm=\"auto\") -> Tensor",
      {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) {
  m.impl("scan", &scan_meta);
  m.impl("linear_recurrence", &recurrence_meta);
}
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) {
  m.impl("scan", &scan_autograd);
  m.impl("linear_recurrence", &recurrence_autograd);
}
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCPU, m) { register_autocast<at::kCPU, c10::DispatchKey::AutocastCPU>(m); }
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCUDA, m) { register_autocast<at::kCUDA, c10::DispatchKey::AutocastCUDA>(m); }

}  // namespace
}  // namespace tp
