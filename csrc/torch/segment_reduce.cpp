// torch_patterns::segment_reduce and torch_patterns::segment_expand: checks, kernels, Meta, derivatives.
//
// Expansion is the transpose of the sum, and the sum that of expansion, so that every order of derivative exists:
//   sum        every row gets the gradient of its segment;
//   mean       so divided by the length;
//   prod       times the product of all other rows, as the one before times the one after: zeros need no care;
//   max, min   the first of the extreme rows gets the gradient. In an empty segment, no row;
//   logsumexp, var, std   times the factor that torch/moments.h gives.
// Forward mode: the same reduction of the tangents of sum and mean, the sum of the tangents times those products, and
// the tangent of the first of the extreme rows.
#include "torch/gradient.h"
#include "torch/logical.h"
#include "torch/moments.h"
#include "torch/segmented.h"
#include "torch/segments.h"

namespace tp {
namespace {

using segmented::Step;

constexpr const char *reduce_name = "segment_reduce", *expand_name = "segment_expand";
Pattern pattern(reduce_name, segment_reduce::ladder);

OpId check_reduce(const Tensor& values, const Tensor& offsets, Str name) {
  const OpId op = reduction_of(reduce_name, name, values);
  check_segments(reduce_name, {"values", values}, offsets);
  reduced_dtype(reduce_name, values, name);
  return op;
}

void check_expand(const Tensor& x, const Tensor& offsets, const SymInt& n) {
  check_segments(expand_name, {"x", x}, offsets);
  TORCH_CHECK_VALUE(x.sym_size(0) == offsets.sym_size(0) - 1, expand_name, ": x has ", x.sym_size(0),
                    " rows, offsets are of ", offsets.sym_size(0) - 1, " segments");
  TORCH_CHECK_VALUE(n >= 0, expand_name, ": n must not be negative, got ", n);
}

// The number of rows of each segment, beside rows g, in their wide dtype.
Tensor lengths_of(const Tensor& offsets, const SymInt& n, const Tensor& g) {
  const SymInt segments = offsets.sym_size(0) - 1;
  const Tensor o = at::clamp(offsets, 0, c10::Scalar(n));
  const Tensor lengths = at::sub(o.narrow_symint(0, 1, segments), o.narrow_symint(0, 0, segments)).clamp_min(0);
  return beside_rows(lengths.to(wide_dtype(g)), g);
}

// f(wide rows, their lengths, reduce, expand) for the compositions of moments.h.
template <class F>
Tensor composed(const SegmentReduce& r, F f) {
  const Tensor wide = r.values.to(wide_dtype(r.values));
  const auto reduce = [&](const Tensor& x, Str op) {
    return call(SegmentReduce{x, r.offsets, op, r.validate, r.algorithm});
  };
  const auto expand = [&](const Tensor& x) {
    return call(SegmentExpand{x, r.offsets, wide.sym_size(0), false, r.algorithm});
  };
  return f(wide, lengths_of(r.offsets, wide.sym_size(0), wide), reduce, expand);
}

Tensor moment_of(const SegmentReduce& r) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return composed(r, [&](const Tensor& wide, const Tensor& lengths, auto reduce, auto expand) {
    return moment(r.op, wide, lengths, reduce, expand).to(r.values.scalar_type());
  });
}

bool has_factors(Str op) { return op == "logsumexp" || is_moment(op); }

Tensor factors_of(const SegmentReduce& r) {
  return composed(r, [&](const Tensor& wide, const Tensor& lengths, auto reduce, auto expand) {
    return tp::factors_of(r.op, wide, lengths, reduce, expand);
  });
}

}  // namespace

// Of var and std, the operator that they are computed from.
OpId reduction_of(const char* pattern, Str name, const Tensor& values) {
  if (is_bitwise(name)) return bitwise_of(pattern, name, values);
  if (name == "any") return OpId::max;
  if (name == "all") return OpId::min;
  if (name == "logsumexp") return OpId::logsumexp;
  if (name == "mean" || is_moment(name)) return OpId::mean;
  if (name == "argmax") return OpId::argmax;
  if (name == "argmin") return OpId::argmin;
  for (const char* scanned : {"sum", "prod", "max", "min"}) {
    if (name == scanned) return op_of(pattern, name);
  }
  TORCH_CHECK_VALUE(false, pattern, ": unknown op '", std::string(name),
                    "'; choose from: sum, prod, max, min, mean, var, std, argmax, argmin, logsumexp, any, all, "
                    "bitwise_and, bitwise_or, bitwise_xor");
}

at::ScalarType reduced_dtype(const char* pattern, const Tensor& values, Str name) {
  const OpId op = reduction_of(pattern, name, values);
  dtype_of_tensor(pattern, values);
  TORCH_CHECK_TYPE((op != OpId::mean && op != OpId::logsumexp) || values.is_floating_point(), pattern, ": op '",
                   std::string(name), "' needs floating point, got values of ", values.scalar_type());
  if (is_logical(name)) return at::kBool;
  if (op == OpId::argmax || op == OpId::argmin) return at::kLong;
  const bool widens = op == OpId::sum || op == OpId::prod;
  return widens && at::isIntegralType(values.scalar_type(), /*includeBool=*/true) ? at::kLong : values.scalar_type();
}

Tensor SegmentReduce::kernel() const {
  const OpId id = check_reduce(values, offsets, op);
  if (is_logical(op)) return logical(*this, &SegmentReduce::values);
  if (is_bitwise(op) && values.scalar_type() == at::kBool) return bitwise_of_bool(*this, &SegmentReduce::values);
  if (is_moment(op)) return moment_of(*this);
  const Tensor in = values.contiguous(), o = offsets.contiguous();
  check_offset_values(reduce_name, {"offsets", o}, in.size(0), validate);
  auto shape = in.sizes().vec();
  shape[0] = o.size(0) - 1;
  Tensor out = empty_result(shape, in.options().dtype(reduced_dtype(reduce_name, in, op)));
  auto args = segmented_args(reduce_name, in, o, in.size(0));
  args.step = Step::reduce;
  args.op = id;
  if (is_bitwise(op)) args.dtype = bits_of(args.dtype);
  args.out = out.mutable_data_ptr();
  if (out.numel() == 0) {
    check_algorithm(segment_reduce::ladder, reduce_name, algorithm);
  } else {
    run(segment_reduce::ladder, segment_reduce::choose, reduce_name, algorithm, in, args);
  }
  return out;
}

Tensor SegmentReduce::meta() const {
  check_reduce(values, offsets, op);
  check_algorithm(segment_reduce::ladder, reduce_name, algorithm);
  return at::empty_symint(with_rows(values, offsets.sym_size(0) - 1),
                          values.options().dtype(reduced_dtype(reduce_name, values, op)));
}

Autocast SegmentReduce::autocast() const {
  const bool rounds = op == "sum" || op == "prod" || op == "mean" || op == "logsumexp" || is_moment(op);
  return rounds ? Autocast::float32 : Autocast::none;
}

Tensor SegmentExpand::kernel() const {
  check_expand(x, offsets, n);
  const int64_t rows = n.expect_int();
  // Values are copied as bytes, but any byte other than 0 is true.
  const Tensor in = (x.scalar_type() == at::kBool ? x.view(at::kByte).ne(0) : x).contiguous(), o = offsets.contiguous();
  check_offset_values(expand_name, {"offsets", o}, rows, validate);
  auto shape = in.sizes().vec();
  shape[0] = rows;
  Tensor out = empty_result(shape, in.options());
  auto args = segmented_args(expand_name, in, o, rows);
  args.step = Step::expand;
  args.out = out.mutable_data_ptr();
  if (out.numel() == 0) {
    check_algorithm(segment_reduce::ladder, expand_name, algorithm);
  } else {
    run(segment_reduce::ladder, segment_reduce::choose, expand_name, algorithm, in, args);
  }
  return out;
}

Tensor SegmentExpand::meta() const {
  check_expand(x, offsets, n);
  check_algorithm(segment_reduce::ladder, expand_name, algorithm);
  return at::empty_symint(with_rows(x, n), x.options());
}

// ---- derivatives

namespace {

// For each row, the product of the other rows of its segment, in the wide dtype.
Tensor product_of_others(const Tensor& values, const Tensor& offsets) {
  const Tensor wide = values.to(wide_dtype(values));
  const auto product = [&](bool reverse) {
    return call(SegmentScan{wide, offsets, "prod", /*exclusive=*/true, reverse, false, "auto"});
  };
  return product(false) * product(true);
}

// The row of each segment's extremum, and n for an empty segment.
Tensor extreme_rows(const SegmentReduce& r) {
  const Str arg = r.op == "max" ? "argmax" : "argmin";
  const Tensor found = call(SegmentReduce{r.values.detach(), r.offsets, arg, false, r.algorithm});
  return found.masked_fill(found.lt(0), c10::Scalar(r.values.sym_size(0)));
}

}  // namespace

Tensors SegmentReduce::vjp(const Backward& b) const {
  const Tensor& g = b.grad();
  const SymInt n = b.sizes(0)[0];
  const auto expand = [&](const Tensor& x) { return call(SegmentExpand{x, offsets, n, false, algorithm}); };
  if (op == "sum") return {expand(g)};
  if (op == "mean") {
    const Tensor lengths = lengths_of(offsets, n, g).clamp_min(1);
    return {expand(at::div(g.to(wide_dtype(g)), lengths).to(g.scalar_type()))};
  }
  if (has_factors(op)) return {(expand(g.to(wide_dtype(g))) * factors_of(*this)).to(values.scalar_type())};
  if (op == "prod") {
    return {(expand(g.to(wide_dtype(g))) * product_of_others(values, offsets)).to(values.scalar_type())};
  }
  // Empty segments use an additional last row, which is cut off afterwards.
  const Tensor grads = at::zeros_symint(with_rows(values, n + 1), g.options()).scatter(0, extreme_rows(*this), g);
  return {grads.narrow_symint(0, 0, n)};
}

Tensors SegmentReduce::jvp(const Forward& f) const {
  const Tensor& t = f.tangent();
  const auto reduced = [&](const Tensor& x, Str how) { return call(SegmentReduce{x, offsets, how, false, algorithm}); };
  if (op == "sum" || op == "mean") return {reduced(t, op)};
  if (has_factors(op)) return {reduced(t.to(wide_dtype(t)) * factors_of(*this), "sum").to(t.scalar_type())};
  if (op == "prod") {
    const auto acc = wide_dtype(t);
    return {reduced(t.to(acc) * product_of_others(values, offsets), "sum").to(t.scalar_type())};
  }
  // Empty segments read an additional last row, which is 0.
  const Tensor beyond = at::zeros_symint(with_rows(t, 1), t.options());
  return {at::cat({t, beyond}).gather(0, extreme_rows(*this))};
}

Tensors SegmentExpand::vjp(const Backward& b) const {
  return {call(SegmentReduce{b.grad(), offsets, "sum", false, algorithm})};
}

Tensors SegmentExpand::jvp(const Forward& f) const {
  return {call(SegmentExpand{f.tangent(), offsets, n, false, algorithm})};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  define<SegmentReduce>(m);
  define<SegmentExpand>(m);
}

}  // namespace tp
