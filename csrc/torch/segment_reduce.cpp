// torch_patterns::segment_reduce and torch_patterns::segment_expand: schema, checks, Meta, Autograd, Autocast.
//
// Expansion is the transpose of the sum, and the sum that of expansion, so that every order of derivative exists:
//   sum        every row gets the gradient of its segment;
//   mean       so divided by the length;
//   prod       times the product of all other rows, as the one before times the one after: zeros need no care;
//   max, min   the first of the extreme rows gets the gradient. Of an empty segment, nobody.
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

constexpr const char *reduce_name = "segment_reduce", *expand_name = "segment_expand";
Pattern pattern(reduce_name, segment_reduce::ladder);

Tensor call_reduce(const Tensor& values, const Tensor& offsets, Str name, bool validate, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, Str, bool, Str)>(reduce_name);
  return handle.call(values, offsets, name, validate, algorithm);
}

Tensor call_expand(const Tensor& x, const Tensor& offsets, const SymInt& n, bool validate, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, SymInt, bool, Str)>(expand_name);
  return handle.call(x, offsets, n, validate, algorithm);
}

Tensor call_scan(const Tensor& values, const Tensor& offsets, bool reverse) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, Str, bool, bool, bool, Str)>("segment_scan");
  return handle.call(values, offsets, "prod", true, reverse, false, "auto");
}

OpId reduction_of(Str name) {
  if (name == "mean") return OpId::mean;
  if (name == "argmax") return OpId::argmax;
  if (name == "argmin") return OpId::argmin;
  for (const char* scanned : {"sum", "prod", "max", "min"}) {
    if (name == scanned) return op_of(reduce_name, name);
  }
  TORCH_CHECK_VALUE(false, reduce_name, ": unknown op '", std::string(name),
                    "'; choose from: sum, prod, max, min, mean, argmax, argmin");
}

at::ScalarType result_of(const Tensor& values, OpId op) {
  if (op == OpId::argmax || op == OpId::argmin) return at::kLong;
  const bool widens = op == OpId::sum || op == OpId::prod;
  return widens && at::isIntegralType(values.scalar_type(), /*includeBool=*/true) ? at::kLong : values.scalar_type();
}

OpId check_reduce(const Tensor& values, const Tensor& offsets, Str name) {
  const OpId op = reduction_of(name);
  check_segments(reduce_name, {"values", values}, offsets);
  TORCH_CHECK_TYPE(op != OpId::mean || values.is_floating_point(), reduce_name,
                   ": the mean is of floating point, got values of ", values.scalar_type());
  return op;
}

void check_expand(const Tensor& x, const Tensor& offsets, const SymInt& n) {
  check_segments(expand_name, {"x", x}, offsets);
  TORCH_CHECK_VALUE(x.sym_size(0) == offsets.sym_size(0) - 1, expand_name, ": x has ", x.sym_size(0),
                    " rows, offsets are of ", offsets.sym_size(0) - 1, " segments");
  TORCH_CHECK_VALUE(n >= 0, expand_name, ": n must not be negative, got ", n);
}

// ---- kernels: CPU and CUDA alike

Tensor reduce_kernel(const Tensor& values, const Tensor& offsets, Str name, bool validate, Str algorithm) {
  const OpId op = check_reduce(values, offsets, name);
  const Tensor in = values.contiguous(), o = offsets.contiguous();
  check_offset_values(reduce_name, {"offsets", o}, in.size(0), validate);
  auto shape = in.sizes().vec();
  shape[0] = o.size(0) - 1;
  Tensor out = empty_result(shape, in.options().dtype(result_of(in, op)));
  auto args = segmented_args(reduce_name, in, o, in.size(0));
  args.step = Step::reduce;
  args.op = op;
  args.out = out.mutable_data_ptr();
  if (out.numel() == 0) {
    check_algorithm(segment_reduce::ladder, reduce_name, algorithm);
  } else {
    run(segment_reduce::ladder, segment_reduce::choose, reduce_name, algorithm, in, args);
  }
  return out;
}

Tensor expand_kernel(const Tensor& x, const Tensor& offsets, SymInt rows, bool validate, Str algorithm) {
  check_expand(x, offsets, rows);
  const int64_t n = rows.expect_int();
  // Values are copied as bytes, but any byte other than 0 is true.
  const Tensor in = (x.scalar_type() == at::kBool ? x.view(at::kByte).ne(0) : x).contiguous(), o = offsets.contiguous();
  check_offset_values(expand_name, {"offsets", o}, n, validate);
  auto shape = in.sizes().vec();
  shape[0] = n;
  Tensor out = empty_result(shape, in.options());
  auto args = segmented_args(expand_name, in, o, n);
  args.step = Step::expand;
  args.out = out.mutable_data_ptr();
  if (out.numel() == 0) {
    check_algorithm(segment_reduce::ladder, expand_name, algorithm);
  } else {
    run(segment_reduce::ladder, segment_reduce::choose, expand_name, algorithm, in, args);
  }
  return out;
}

// ---- Meta

Tensor reduce_meta(const Tensor& values, const Tensor& offsets, Str name, bool, Str algorithm) {
  const OpId op = check_reduce(values, offsets, name);
  check_algorithm(segment_reduce::ladder, reduce_name, algorithm);
  const auto options = values.options().dtype(result_of(values, op));
  return at::empty_symint(with_rows(values, offsets.sym_size(0) - 1), options);
}

Tensor expand_meta(const Tensor& x, const Tensor& offsets, SymInt n, bool, Str algorithm) {
  check_expand(x, offsets, n);
  check_algorithm(segment_reduce::ladder, expand_name, algorithm);
  return at::empty_symint(with_rows(x, n), x.options());
}

// ---- Autograd

Tensor mean_backward(const Tensor& g, const Tensor& offsets, const SymInt& n, Str algorithm) {
  const auto acc = at::toOpMathType(g.scalar_type());
  const SymInt segments = offsets.sym_size(0) - 1;
  const Tensor o = at::clamp(offsets, 0, c10::Scalar(n));
  const Tensor lengths = at::sub(o.narrow_symint(0, 1, segments), o.narrow_symint(0, 0, segments)).clamp_min(1);
  const Tensor share = at::div(g.to(acc), beside_rows(lengths.to(acc), g)).to(g.scalar_type());
  return call_expand(share, offsets, n, false, algorithm);
}

Tensor prod_backward(const Tensor& g, const Tensor& values, const Tensor& offsets, Str algorithm) {
  const auto acc = at::toOpMathType(values.scalar_type());
  const Tensor wide = values.to(acc);
  const Tensor others = call_scan(wide, offsets, false) * call_scan(wide, offsets, true);
  return (call_expand(g.to(acc), offsets, values.sym_size(0), false, algorithm) * others).to(values.scalar_type());
}

// Empty segments give to a row beyond the last, which is cut off.
Tensor extremum_backward(const Tensor& g, const Tensor& values, const Tensor& offsets, const std::string& name,
                         Str algorithm) {
  const SymInt n = values.sym_size(0);
  const Tensor found = call_reduce(values, offsets, "arg" + name, false, algorithm);
  const Tensor rows = found.masked_fill(found.lt(0), c10::Scalar(n));
  return at::zeros_symint(with_rows(values, n + 1), g.options()).scatter(0, rows, g).narrow_symint(0, 0, n);
}

struct ReduceFunction : torch::autograd::Function<ReduceFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& values, const Tensor& offsets, std::string name,
                        bool validate, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    const Tensor y = call_reduce(values, offsets, name, validate, algorithm);
    ctx->saved_data["op"] = name;
    ctx->saved_data["n"] = values.sym_size(0);
    ctx->saved_data["algorithm"] = algorithm;
    ctx->save_for_backward({offsets, name == "sum" || name == "mean" ? Tensor() : values});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto tensors = ctx->get_saved_variables();
    const Tensor &g = grads[0], &offsets = tensors[0], &values = tensors[1];
    const std::string name = ctx->saved_data.at("op").toStringRef();
    const std::string algorithm = ctx->saved_data.at("algorithm").toStringRef();
    const SymInt n = ctx->saved_data.at("n").toSymInt();
    variable_list result(5);
    if (!g.defined()) return result;
    if (name == "sum") result[0] = call_expand(g, offsets, n, false, algorithm);
    if (name == "mean") result[0] = mean_backward(g, offsets, n, algorithm);
    if (name == "prod") result[0] = prod_backward(g, values, offsets, algorithm);
    if (name == "max" || name == "min") result[0] = extremum_backward(g, values, offsets, name, algorithm);
    return result;
  }
};

Tensor reduce_autograd(const Tensor& values, const Tensor& offsets, Str name, bool validate, Str algorithm) {
  if (name == "argmax" || name == "argmin") {
    at::AutoDispatchBelowADInplaceOrView below;
    return call_reduce(values, offsets, name, validate, algorithm);
  }
  return ReduceFunction::apply(values, offsets, std::string(name), validate, std::string(algorithm));
}

struct ExpandFunction : torch::autograd::Function<ExpandFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& offsets, SymInt n, bool validate,
                        std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    const Tensor y = call_expand(x, offsets, n, validate, algorithm);
    ctx->saved_data["algorithm"] = algorithm;
    ctx->save_for_backward({offsets});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto tensors = ctx->get_saved_variables();
    const std::string algorithm = ctx->saved_data.at("algorithm").toStringRef();
    variable_list result(5);
    if (grads[0].defined()) result[0] = call_reduce(grads[0], tensors[0], "sum", false, algorithm);
    return result;
  }
};

Tensor expand_autograd(const Tensor& x, const Tensor& offsets, SymInt n, bool validate, Str algorithm) {
  return ExpandFunction::apply(x, offsets, n, validate, std::string(algorithm));
}

// ---- Autocast: sums and products run in and return float32; the others round nothing

template <c10::DeviceType device, c10::DispatchKey key>
Tensor reduce_autocast(const Tensor& values, const Tensor& offsets, Str name, bool validate, Str algorithm) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const bool rounds = name == "sum" || name == "prod" || name == "mean";
  const Tensor in = rounds ? at::autocast::cached_cast(at::kFloat, values, device) : values;
  return call_reduce(in, offsets, name, validate, algorithm);
}

void register_kernels(torch::Library& m) {
  m.impl(reduce_name, &reduce_kernel);
  m.impl(expand_name, &expand_kernel);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  m.def(
      "segment_reduce(Tensor values, Tensor offsets, str op=\"sum\", bool validate=False, str algorithm=\"auto\") -> "
      "Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def("segment_expand(Tensor x, Tensor offsets, SymInt n, bool validate=False, str algorithm=\"auto\") -> Tensor",
        {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) {
  m.impl(reduce_name, &reduce_meta);
  m.impl(expand_name, &expand_meta);
}
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) {
  m.impl(reduce_name, &reduce_autograd);
  m.impl(expand_name, &expand_autograd);
}
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCPU, m) {
  m.impl(reduce_name, &reduce_autocast<at::kCPU, c10::DispatchKey::AutocastCPU>);
}
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCUDA, m) {
  m.impl(reduce_name, &reduce_autocast<at::kCUDA, c10::DispatchKey::AutocastCUDA>);
}

}  // namespace
}  // namespace tp
