// torch_patterns::segment_scan and torch_patterns::segment_recurrence: checks, kernels, Meta, derivatives.
//
// The recurrence h[k] = a[k] h[k-1] + b[k] restarts, with h[k] = b[k], at the head of every segment and wherever
// a[k] is 0. It is what derivatives need, and nothing that a segment or a factor of 0 cuts off reaches what follows.
// Reverse mode, with R the gradient that reaches a row from all outputs after it:
//   sum         the transpose of a running sum is a running sum from the other end;
//   prod        grad x[j] = (product before j) * R[j], R[j] = g[j] + x[j+1] R[j+1];
//   max, min    an element that takes the lead collects the gradients of the outputs that it leads:
//               R[j] = g[j] + k[j+1] R[j+1], k being 0 where the lead changes and else 1;
//   recurrence  grad b = R, R[j] = g[j] + a[j+1] R[j+1]; grad a[j] = R[j] h[j-1].
// Forward mode, with x' the tangent of x:
//   sum         the running sum of x';
//   prod        y'[j] = x[j] y'[j-1] + x'[j] (product before j);
//   max, min    y'[j] = x'[j] where the lead changes and else y'[j-1];
//   recurrence  h'[j] = a[j] h'[j-1] + (b'[j] + a'[j] h[j-1]).
#include "torch/gradient.h"
#include "torch/segmented.h"
#include "torch/segments.h"

namespace tp {
namespace {

using segmented::Step;

constexpr const char *scan_name = "segment_scan", *recurrence_name = "segment_recurrence";
Pattern pattern(scan_name, segment_scan::ladder);

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

}  // namespace

Tensor SegmentScan::kernel() const {
  const OpId id = check_scan(values, offsets, op);
  const Tensor in = values.contiguous(), o = offsets.contiguous();
  check_offset_values(scan_name, {"offsets", o}, in.size(0), validate);
  auto args = segmented_args(scan_name, in, o, in.size(0));
  args.op = id;
  args.exclusive = exclusive;
  args.reverse = reverse;
  return run_scan(scan_name, args, in, result_of(in, id), algorithm);
}

Tensor SegmentScan::meta() const {
  const OpId id = check_scan(values, offsets, op);
  check_algorithm(segment_scan::ladder, scan_name, algorithm);
  return at::empty_symint(values.sym_sizes(), values.options().dtype(result_of(values, id)));
}

Tensor SegmentRecurrence::kernel() const {
  check_recurrence(a, b, offsets);
  const Tensor factors = a.contiguous(), in = b.contiguous(), o = offsets.contiguous();
  check_offset_values(recurrence_name, {"offsets", o}, in.size(0), false);
  auto args = segmented_args(recurrence_name, in, o, in.size(0));
  args.a = factors.const_data_ptr();
  args.op = OpId::affine;
  args.reverse = reverse;
  return run_scan(recurrence_name, args, in, in.scalar_type(), algorithm);
}

Tensor SegmentRecurrence::meta() const {
  check_recurrence(a, b, offsets);
  check_algorithm(segment_scan::ladder, recurrence_name, algorithm);
  return at::empty_symint(b.sym_sizes(), b.options());
}

// ---- derivatives

namespace {

// y[k] = x[k + 1] in scan order. What comes round at the end of the rows, or from another segment, is not used.
Tensor next(const Tensor& x, bool reverse) { return at::roll(x, reverse ? 1 : -1, 0); }
Tensor previous(const Tensor& x, bool reverse) { return next(x, !reverse); }

// Whether a segment begins at each position in scan order, shaped to broadcast with rows x.
Tensor heads(const Tensor& offsets, const Tensor& x, bool reverse) {
  const SymInt n = x.sym_size(0);
  const Tensor places = at::clamp(offsets.to(at::kLong), 0, c10::Scalar(n));
  const Tensor borders = at::zeros_symint({n + 1}, x.options().dtype(at::kBool)).index_fill(0, places, 1);
  return beside_rows(borders.narrow_symint(0, reverse ? 1 : 0, n), x);
}

// x[k - 1] in scan order, and 0 at the head of a segment.
Tensor previous_in_segment(const Tensor& x, const Tensor& offsets, bool reverse) {
  return previous(x, reverse).masked_fill(heads(offsets, x, reverse), 0);
}

// Where the lead of a running extremum y does not change: element k is led by the leader of k - 1.
Tensor keeps_leader(const SegmentScan& s, const Tensor& y) {
  const Tensor held = s.exclusive ? y : previous(y, s.reverse);
  const Tensor led = (s.op == "max" ? held >= s.values : held <= s.values) | held.isnan();
  return led & ~heads(s.offsets, s.values, s.reverse);
}

}  // namespace

Tensors SegmentScan::vjp(const Backward& b) const {
  const Tensor& g = b.grad();
  if (op == "sum") return {call(SegmentScan{g, offsets, op, exclusive, !reverse, false, algorithm})};
  const auto acc = wide_dtype(values);
  const Tensor from = exclusive ? previous_in_segment(g.to(acc), offsets, !reverse) : g.to(acc);
  const auto collect = [&](const Tensor& factors) {
    return call(SegmentRecurrence{next(factors, reverse), from, offsets, !reverse, algorithm});
  };
  if (op != "prod") {
    const Tensor keeps = keeps_leader(*this, b.output());
    return {collect(keeps.to(acc)).masked_fill(keeps, 0).to(values.scalar_type())};
  }
  const Tensor wide = values.to(acc);
  const Tensor before = call(SegmentScan{wide, offsets, op, true, reverse, false, algorithm});
  return {(before * collect(wide)).to(values.scalar_type())};
}

Tensors SegmentScan::jvp(const Forward& f) const {
  const Tensor& t = f.tangent();
  if (op == "sum") return {call(SegmentScan{t, offsets, op, exclusive, reverse, false, algorithm})};
  const auto acc = wide_dtype(values);
  Tensor factors, terms;
  if (op == "prod") {
    factors = values.to(acc);
    terms = t.to(acc) * call(SegmentScan{factors, offsets, op, true, reverse, false, algorithm});
  } else {
    const Tensor keeps = keeps_leader(*this, f.output());
    factors = keeps.to(acc);
    terms = t.to(acc).masked_fill(keeps, 0);
  }
  const Tensor inclusive = call(SegmentRecurrence{factors, terms, offsets, reverse, algorithm}).to(t.scalar_type());
  return {exclusive ? previous_in_segment(inclusive, offsets, reverse) : inclusive};
}

Tensors SegmentRecurrence::vjp(const Backward& back) const {
  const Tensor& h = back.output();
  const Tensor grad_b = call(SegmentRecurrence{next(a, reverse), back.grad(), offsets, !reverse, algorithm});
  return {back.wants(0) ? grad_b * previous_in_segment(h, offsets, reverse) : Tensor(), grad_b};
}

Tensors SegmentRecurrence::jvp(const Forward& f) const {
  Tensor terms = f.tangent(1);
  if (f.tangent(0).defined()) {
    terms = plus(terms, f.tangent(0) * previous_in_segment(f.output(), offsets, reverse));
  }
  return {call(SegmentRecurrence{a, terms, offsets, reverse, algorithm})};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  define<SegmentScan>(m);
  define<SegmentRecurrence>(m);
}

}  // namespace tp
