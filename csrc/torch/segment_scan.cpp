// torch_patterns::segment_scan and torch_patterns::segment_recurrence: schema, checks, Meta, Autograd, Autocast.
//
// The recurrence h[k] = a[k] h[k-1] + b[k] starts anew, with h[k] = b[k], at the head of every segment and wherever
// a[k] is 0. It is what gradients need, and nothing that a segment or a factor of 0 cuts off reaches what follows:
//   sum         the transpose of a running sum is a running sum from the other end;
//   prod        grad x[j] = (product before j) * R[j], R[j] = g[j] + x[j+1] R[j+1];
//   max, min    an element that takes the lead collects the gradients of the outputs that it leads:
//               R[j] = g[j] + k[j+1] R[j+1], k being 0 where the lead changes and else 1;
//   recurrence  grad b = R, R[j] = g[j] + a[j+1] R[j+1]; grad a[j] = R[j] h[j-1].
#include <ATen/OpMathType.h>
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include "torch/segments.h"

namespace tp {
namespace {

using c10::SymInt;
using segmented::Step;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char *scan_name = "segment_scan", *recurrence_name = "segment_recurrence";
Pattern pattern(scan_name, segment_scan::ladder);

Tensor call_scan(const Tensor& values, const Tensor& offsets, Str name, bool exclusive, bool reverse, bool validate,
                 Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, Str, bool, bool, bool, Str)>(scan_name);
  return handle.call(values, offsets, name, exclusive, reverse, validate, algorithm);
}

Tensor call_recurrence(const Tensor& a, const Tensor& b, const Tensor& offsets, bool reverse, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, const Tensor&, bool, Str)>(recurrence_name);
  return handle.call(a, b, offsets, reverse, algorithm);
}

at::ScalarType result_of(const Tensor& values, OpId op) {
  const bool widens = op == OpId::sum || op == OpId::prod;
  return widens && at::isIntegralType(values.scalar_type(), /*includeBool=*/true) ? at::kLong : values.scalar_type();
}

OpId check_scan(const Tensor& values, const Tensor& offsets, Str name) {
  const OpId op = op_of(scan_name, name);
  check_segments(scan_name, {"values", values}, offsets);
  return op;
}

void check_recurrence(const Tensor& a, const Tensor& b, const Tensor& offsets) {
  check_floats(recurrence_name, {{"a", a}, {"b", b}});
  check_segments(recurrence_name, {"a", a}, offsets);
  TORCH_CHECK_VALUE(a.sym_sizes() == b.sym_sizes(), recurrence_name, ": a has shape ", a.sym_sizes(), ", b has ",
                    b.sym_sizes());
}

// ---- kernels: CPU and CUDA alike

Tensor run_scan(const char* name, segmented::Args args, const Tensor& in, at::ScalarType dtype, Str algorithm) {
  Tensor out = empty_result(in.sizes(), in.options().dtype(dtype));
  args.step = Step::scan;
  args.out = out.mutable_data_ptr();
  if (out.numel() == 0) {
    check_algorithm(segment_scan::ladder, name, algorithm);
  } else {
    run(segment_scan::ladder, segment_scan::choose, name, algorithm, in, args);
  }
  return out;
}

Tensor scan_kernel(const Tensor& values, const Tensor& offsets, Str name, bool exclusive, bool reverse, bool validate,
                   Str algorithm) {
  const OpId op = check_scan(values, offsets, name);
  const Tensor in = values.contiguous(), o = offsets.contiguous();
  check_offset_values(scan_name, {"offsets", o}, in.size(0), validate);
  auto args = segmented_args(scan_name, in, o, in.size(0));
  args.op = op;
  args.exclusive = exclusive;
  args.reverse = reverse;
  return run_scan(scan_name, args, in, result_of(in, op), algorithm);
}

Tensor recurrence_kernel(const Tensor& a, const Tensor& b, const Tensor& offsets, bool reverse, Str algorithm) {
  check_recurrence(a, b, offsets);
  const Tensor factors = a.contiguous(), in = b.contiguous(), o = offsets.contiguous();
  check_offset_values(recurrence_name, {"offsets", o}, in.size(0), false);
  auto args = segmented_args(recurrence_name, in, o, in.size(0));
  args.a = factors.const_data_ptr();
  args.op = OpId::affine;
  args.reverse = reverse;
  return run_scan(recurrence_name, args, in, in.scalar_type(), algorithm);
}

// ---- Meta

Tensor scan_meta(const Tensor& values, const Tensor& offsets, Str name, bool, bool, bool, Str algorithm) {
  const OpId op = check_scan(values, offsets, name);
  check_algorithm(segment_scan::ladder, scan_name, algorithm);
  return at::empty_symint(values.sym_sizes(), values.options().dtype(result_of(values, op)));
}

Tensor recurrence_meta(const Tensor& a, const Tensor& b, const Tensor& offsets, bool, Str algorithm) {
  check_recurrence(a, b, offsets);
  check_algorithm(segment_scan::ladder, recurrence_name, algorithm);
  return at::empty_symint(b.sym_sizes(), b.options());
}

// ---- Autograd

// y[k] = x[k + 1] in scan order. What comes round at the end of the rows, or from another segment, is not used.
Tensor next(const Tensor& x, bool reverse) { return at::roll(x, reverse ? 1 : -1, 0); }
Tensor previous(const Tensor& x, bool reverse) { return next(x, !reverse); }

// Where, in scan order, a segment begins, beside rows x.
Tensor heads(const Tensor& offsets, const Tensor& x, bool reverse) {
  const SymInt n = x.sym_size(0);
  const Tensor places = at::clamp(offsets.to(at::kLong), 0, c10::Scalar(n));
  const Tensor borders = at::zeros_symint({n + 1}, x.options().dtype(at::kBool)).index_fill(0, places, 1);
  return beside_rows(borders.narrow_symint(0, reverse ? 1 : 0, n), x);
}

// The gradients of an inclusive scan, from those of an exclusive one too.
Tensor from_inclusive(const Tensor& g, const Tensor& offsets, at::ScalarType acc, bool exclusive, bool reverse) {
  const Tensor wide = g.to(acc);
  return exclusive ? next(wide, reverse).masked_fill(heads(offsets, g, !reverse), 0) : wide;
}

Tensor prod_backward(const Tensor& g, const Tensor& x, const Tensor& offsets, bool exclusive, bool reverse,
                     Str algorithm) {
  const auto acc = at::toOpMathType(x.scalar_type());
  const Tensor wide = x.to(acc), from = from_inclusive(g, offsets, acc, exclusive, reverse);
  const Tensor after = call_recurrence(next(wide, reverse), from, offsets, !reverse, algorithm);
  return (call_scan(wide, offsets, "prod", true, reverse, false, algorithm) * after).to(x.scalar_type());
}

Tensor extremum_backward(const Tensor& g, const Tensor& x, const Tensor& y, const Tensor& offsets, Str name,
                         bool exclusive, bool reverse, Str algorithm) {
  const auto acc = at::toOpMathType(x.scalar_type());
  const Tensor held = exclusive ? y : previous(y, reverse);
  const Tensor keeps = ((name == "max" ? held >= x : held <= x) | held.isnan()) & ~heads(offsets, x, reverse);
  const Tensor from = from_inclusive(g, offsets, acc, exclusive, reverse);
  const Tensor led = call_recurrence(next(keeps, reverse).to(acc), from, offsets, !reverse, algorithm);
  return led.masked_fill(keeps, 0).to(x.scalar_type());
}

struct ScanFunction : torch::autograd::Function<ScanFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& offsets, std::string name, bool exclusive,
                        bool reverse, bool validate, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    const Tensor y = call_scan(x, offsets, name, exclusive, reverse, validate, algorithm);
    ctx->saved_data["op"] = name;
    ctx->saved_data["exclusive"] = exclusive;
    ctx->saved_data["reverse"] = reverse;
    ctx->saved_data["algorithm"] = algorithm;
    ctx->save_for_backward({offsets, name == "sum" ? Tensor() : x, name == "sum" || name == "prod" ? Tensor() : y});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& saved = ctx->saved_data;
    const auto tensors = ctx->get_saved_variables();
    const Tensor &g = grads[0], &offsets = tensors[0], &x = tensors[1], &y = tensors[2];
    const std::string name = saved.at("op").toStringRef(), algorithm = saved.at("algorithm").toStringRef();
    const bool exclusive = saved.at("exclusive").toBool(), reverse = saved.at("reverse").toBool();
    variable_list result(7);
    if (!g.defined()) return result;
    if (name == "sum") {
      result[0] = call_scan(g, offsets, "sum", exclusive, !reverse, false, algorithm);
    } else if (name == "prod") {
      result[0] = prod_backward(g, x, offsets, exclusive, reverse, algorithm);
    } else {
      result[0] = extremum_backward(g, x, y, offsets, name, exclusive, reverse, algorithm);
    }
    return result;
  }
};

Tensor scan_autograd(const Tensor& x, const Tensor& offsets, Str name, bool exclusive, bool reverse, bool validate,
                     Str algorithm) {
  return ScanFunction::apply(x, offsets, std::string(name), exclusive, reverse, validate, std::string(algorithm));
}

struct RecurrenceFunction : torch::autograd::Function<RecurrenceFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& a, const Tensor& b, const Tensor& offsets, bool reverse,
                        std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    const Tensor h = call_recurrence(a, b, offsets, reverse, algorithm);
    ctx->saved_data["reverse"] = reverse;
    ctx->saved_data["algorithm"] = algorithm;
    ctx->save_for_backward({a, h, offsets});
    return h;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto tensors = ctx->get_saved_variables();
    const Tensor &g = grads[0], &a = tensors[0], &h = tensors[1], &offsets = tensors[2];
    const bool reverse = ctx->saved_data.at("reverse").toBool();
    const std::string algorithm = ctx->saved_data.at("algorithm").toStringRef();
    variable_list result(5);
    if (!g.defined()) return result;
    result[1] = call_recurrence(next(a, reverse), g, offsets, !reverse, algorithm);
    if (ctx->needs_input_grad(0))
      result[0] = (result[1] * previous(h, reverse)).masked_fill(heads(offsets, h, reverse), 0);
    return result;
  }
};

Tensor recurrence_autograd(const Tensor& a, const Tensor& b, const Tensor& offsets, bool reverse, Str algorithm) {
  return RecurrenceFunction::apply(a, b, offsets, reverse, std::string(algorithm));
}

// ---- Autocast: scans run in and return float32

template <c10::DeviceType device, c10::DispatchKey key>
Tensor scan_autocast(const Tensor& x, const Tensor& offsets, Str name, bool exclusive, bool reverse, bool validate,
                     Str algorithm) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const Tensor wide = at::autocast::cached_cast(at::kFloat, x, device);
  return call_scan(wide, offsets, name, exclusive, reverse, validate, algorithm);
}

template <c10::DeviceType device, c10::DispatchKey key>
Tensor recurrence_autocast(const Tensor& a, const Tensor& b, const Tensor& offsets, bool reverse, Str algorithm) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const auto cast = [](const Tensor& t) { return at::autocast::cached_cast(at::kFloat, t, device); };
  return call_recurrence(cast(a), cast(b), offsets, reverse, algorithm);
}

template <c10::DeviceType device, c10::DispatchKey key>
void register_autocast(torch::Library& m) {
  m.impl(scan_name, &scan_autocast<device, key>);
  m.impl(recurrence_name, &recurrence_autocast<device, key>);
}

void register_kernels(torch::Library& m) {
  m.impl(scan_name, &scan_kernel);
  m.impl(recurrence_name, &recurrence_kernel);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  m.def(
      "segment_scan(Tensor values, Tensor offsets, str op=\"sum\", bool exclusive=False, bool reverse=False, bool "
      "validate=False, str algorithm=\"auto\") -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def("segment_recurrence(Tensor a, Tensor b, Tensor offsets, bool reverse=False, str algorithm=\"auto\") -> Tensor",
        {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) {
  m.impl(scan_name, &scan_meta);
  m.impl(recurrence_name, &recurrence_meta);
}
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) {
  m.impl(scan_name, &scan_autograd);
  m.impl(recurrence_name, &recurrence_autograd);
}
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCPU, m) { register_autocast<at::kCPU, c10::DispatchKey::AutocastCPU>(m); }
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCUDA, m) { register_autocast<at::kCUDA, c10::DispatchKey::AutocastCUDA>(m); }

}  // namespace
}  // namespace tp
