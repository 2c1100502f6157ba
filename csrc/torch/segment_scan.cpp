// torch_patterns::segment_scan and torch_patterns::segment_recurrence: checks, kernels, Meta, derivatives.
//
// The recurrence h[k] = a[k] h[k-1] + b[k] restarts, with h[k] = b[k], at the head of every segment and wherever a[k]
// is 0. The derivatives are such recurrences, too, so NaN and infinities do not pass a segment's border or a factor of
// 0.
// Reverse mode, where R is the gradient that reaches a row from all later outputs:
//   sum         the transpose of a running sum is a running sum from the other end;
//   prod        grad x[j] = (product before j) * R[j], R[j] = g[j] + x[j+1] R[j+1];
//   max, min    an element that takes the lead collects the gradients of the outputs that it leads:
//               R[j] = g[j] + k[j+1] R[j+1], k being 0 where the lead changes and else 1;
//   recurrence  grad b = R, R[j] = g[j] + a[j+1] R[j+1]; grad a[j] = R[j] h[j-1]; grad initial = (R a) at the head.
// Forward mode, with x' the tangent of x:
//   sum         the running sum of x';
//   prod        y'[j] = x[j] y'[j-1] + x'[j] (product before j);
//   max, min    y'[j] = x'[j] where the lead changes and else y'[j-1];
//   recurrence  h'[j] = a[j] h'[j-1] + (b'[j] + a'[j] h[j-1]).
#include "torch/gradient.h"
#include "torch/named_ops.h"
#include "torch/segmented.h"
#include "torch/segments.h"

namespace tp {
namespace {

using segmented::Step;

constexpr const char *scan_name = "segment_scan", *recurrence_name = "segment_recurrence";
Pattern pattern(scan_name, segment_scan::ladder);

void check_recurrence(const SegmentRecurrence& r) {
  const Tensor &a = r.a, &b = r.b, &offsets = r.offsets;
  check_floats(recurrence_name, {{"a", a}, {"b", b}, {"initial", r.initial.value_or(a)}});
  check_segments(recurrence_name, {"a", a}, offsets);
  if (r.initial) {
    TORCH_CHECK_VALUE(r.initial->sym_sizes() == SymIntArrayRef(with_rows(a, offsets.sym_size(0) - 1)), recurrence_name,
                      ": initial must have one row per segment, ", with_rows(a, offsets.sym_size(0) - 1), ", got ",
                      r.initial->sym_sizes());
  }
  TORCH_CHECK_VALUE(a.sym_sizes() == b.sym_sizes(), recurrence_name, ": a has shape ", a.sym_sizes(), ", b has ",
                    b.sym_sizes());
}

// y[k] = x[k + 1] in scan order. Elements that wrap around, or come from another segment, are not used.
Tensor next(const Tensor& x, bool reverse) { return at::roll(x, reverse ? 1 : -1, 0); }
Tensor previous(const Tensor& x, bool reverse) { return next(x, !reverse); }

// Whether a segment begins at each position in scan order, shaped to broadcast with rows x.
Tensor heads(const Tensor& offsets, const Tensor& x, bool reverse) {
  const SymInt n = x.sym_size(0);
  const Tensor starts = at::clamp(offsets.to(at::kLong), 0, c10::Scalar(n));
  const Tensor borders = at::zeros_symint({n + 1}, x.options().dtype(at::kBool)).index_fill(0, starts, 1);
  return beside_rows(borders.narrow_symint(0, reverse ? 1 : 0, n), x);
}

// x[k - 1] in scan order, and 0 at the head of a segment.
Tensor previous_in_segment(const Tensor& x, const Tensor& offsets, bool reverse) {
  return previous(x, reverse).masked_fill(heads(offsets, x, reverse), 0);
}

// The state before each row: that of the previous row; at the head of a segment, `initial` or 0.
Tensor previous_state(const SegmentRecurrence& r, const Tensor& h) {
  if (!r.initial) return previous_in_segment(h, r.offsets, r.reverse);
  const Tensor start = call(SegmentExpand{*r.initial, r.offsets, h.sym_size(0), false, "auto"});
  return at::where(heads(r.offsets, h, r.reverse), start, previous(h, r.reverse));
}

// Adds a * initial to the head of each segment in the rows b; nothing is added where a is 0. Empty segments write to
// one additional row.
Tensor with_initial(const SegmentRecurrence& r) {
  const int64_t n = r.b.size(0), segments = r.initial->size(0);
  const Tensor o = at::clamp(r.offsets.to(at::kLong), 0, n);
  const Tensor begins = o.narrow(0, 0, segments), ends = o.narrow(0, 1, segments);
  const Tensor rows = r.reverse ? ends - 1 : begins, empty = ends <= begins;
  const Tensor inside = rows.masked_fill(empty, 0);
  const Tensor factors = r.a.index_select(0, inside);
  const Tensor carried = (factors * *r.initial).masked_fill(factors == 0, 0) + r.b.index_select(0, inside);
  auto sizes = r.b.sizes().vec();
  ++sizes[0];
  Tensor result = at::empty(sizes, r.b.options());
  result.narrow(0, 0, n).copy_(r.b);
  result.index_copy_(0, rows.masked_fill(empty, n), carried);
  return result.narrow(0, 0, n);
}

segmented::Args scan_args(const char* name, OpId op, const Tensor& in, const Tensor& offsets, bool reverse,
                          Tensor& out) {
  auto args = segmented_args(name, in, offsets, in.size(0));
  args.step = Step::scan;
  args.op = op;
  args.reverse = reverse;
  args.out = out.mutable_data_ptr();
  return args;
}

// The row of each running extremum: an element leads if it beats all before it in its segment, and another scan carries
// the row of the latest leader on (rows increase in scan order, or decrease in reverse). It is -1 outside all segments.
Tensor leading_rows(const SegmentScan& s) {
  const Tensor x = s.values;
  const auto scan = [&](const Tensor& t, Str extremum, bool exclusive) {
    return SegmentScan{t, s.offsets, extremum, exclusive, s.reverse, s.validate, s.algorithm}.kernel();
  };
  const Tensor before = scan(x, s.op == "argmax" ? "max" : "min", true);
  Tensor leads = (s.op == "argmax" ? x > before : x < before) | heads(s.offsets, x, s.reverse);
  if (x.is_floating_point()) leads |= x.isnan() & ~before.isnan();
  const int64_t n = x.size(0), nowhere = s.reverse ? n : -1;
  const Tensor rows = beside_rows(at::arange(n, s.offsets.options().dtype(at::kLong)), x);
  const Tensor found = scan(at::where(leads, rows, nowhere), s.reverse ? "min" : "max", false);
  return found.masked_fill((found < 0) | (found >= n), -1);
}

}  // namespace

Tensor SegmentScan::kernel() const {
  const OpId id = scan_of(scan_name, op, exclusive, values);
  check_segments(scan_name, {"values", values}, offsets);
  if (is_converted(op, values)) return with_converted(*this, &SegmentScan::values);
  if (finds_index(op) && !values.is_meta()) return leading_rows(*this);
  check_offset_values(scan_name, {"offsets", offsets}, values.sym_size(0), validate);
  Tensor out = empty_result(values.sym_sizes(), values.options().dtype(combined_dtype(op, id, values)));
  if (is_done(out, segment_scan::ladder, scan_name, algorithm)) return out;
  const Tensor in = values.contiguous(), o = offsets.contiguous();
  auto args = scan_args(scan_name, id, in, o, reverse, out);
  args.dtype = combining_dtype(scan_name, op, in);
  args.exclusive = exclusive;
  run(segment_scan::ladder, segment_scan::choose, scan_name, algorithm, in, args);
  return out;
}

Tensor SegmentRecurrence::kernel() const {
  check_recurrence(*this);
  if (initial && !b.is_meta() &&
      wide_dtype(b) != b.scalar_type()) {  // rows to which `initial` is added must not be rounded
    const auto wide = wide_dtype(b);
    return SegmentRecurrence{a.to(wide), b.to(wide), offsets, reverse, initial->to(wide), algorithm}.kernel().to(
        b.scalar_type());
  }
  check_offset_values(recurrence_name, {"offsets", offsets}, b.sym_size(0), false);
  Tensor out = empty_result(b.sym_sizes(), b.options());
  if (is_done(out, segment_scan::ladder, recurrence_name, algorithm)) return out;
  const Tensor factors = a.contiguous(), o = offsets.contiguous(), in = initial ? with_initial(*this) : b.contiguous();
  auto args = scan_args(recurrence_name, OpId::affine, in, o, reverse, out);
  args.a = factors.const_data_ptr();
  run(segment_scan::ladder, segment_scan::choose, recurrence_name, algorithm, in, args);
  return out;
}

// ---- derivatives

namespace {

// Tells where the leader of a running extremum y does not change: the leader of k is that of k - 1.
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
    return call(SegmentRecurrence{next(factors, reverse), from, offsets, !reverse, {}, algorithm});
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
  const Tensor inclusive = call(SegmentRecurrence{factors, terms, offsets, reverse, {}, algorithm}).to(t.scalar_type());
  return {exclusive ? previous_in_segment(inclusive, offsets, reverse) : inclusive};
}

Tensors SegmentRecurrence::vjp(const Backward& back) const {
  const Tensor& h = back.output();
  const Tensor grad_b = call(SegmentRecurrence{next(a, reverse), back.grad(), offsets, !reverse, {}, algorithm});
  Tensor grad_a, grad_initial;
  if (back.wants(0)) grad_a = grad_b * previous_state(*this, h);
  if (initial && back.wants(3)) {
    const Tensor at_heads = (grad_b * a).masked_fill(~heads(offsets, h, reverse), 0);
    grad_initial = call(SegmentReduce{at_heads, offsets, "sum", false, "auto"});
  }
  return {grad_a, grad_b, Tensor(), grad_initial};
}

Tensors SegmentRecurrence::jvp(const Forward& f) const {
  Tensor terms = f.tangent(1);
  if (f.tangent(0).defined()) {
    terms = plus(terms, f.tangent(0) * previous_state(*this, f.output()));
  }
  if (!terms.defined()) terms = at::zeros_like(b);
  OptionalTensor start;
  if (f.tangent(3).defined()) start = f.tangent(3);
  return {call(SegmentRecurrence{a, terms, offsets, reverse, start, algorithm})};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<SegmentScan, SegmentRecurrence>(m); }

}  // namespace tp
