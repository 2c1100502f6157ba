// torch_patterns::scan and torch_patterns::linear_recurrence: checks, kernels, Meta, derivatives.
//
// The derivatives are scans again, so that every order of derivative exists and costs O(n). Reverse mode, with R the
// gradient that reaches an element from all outputs after it:
//   sum        the transpose of a running sum is a running sum from the other end;
//   prod       grad x[j] = (product before j) * R[j], R[j] = g[j] + x[j+1] R[j+1]: a recurrence, so zeros need no care;
//   max, min   an element that takes the lead collects the gradients of the outputs that it leads:
//              R[j] = g[j] + k[j+1] R[j+1], where k = 0 ends a run: NaN stays in its run;
//   recurrence grad b = R, R[t] = g[t] + a[t+1] R[t+1]; grad a[t] = R[t] h[t-1].
// Forward mode, with x' the tangent of x:
//   sum        the running sum of x';
//   prod       y'[j] = x[j] y'[j-1] + x'[j] (product before j): a recurrence;
//   max, min   the tangent of the element that leads;
//   recurrence h'[t] = a[t] h'[t-1] + (b'[t] + a'[t] h[t-1]).
#include "scan/scan.h"

#include <ATen/ATen.h>
#include <ATen/native/TypeProperties.h>

#include "torch/gradient.h"
#include "torch/named_ops.h"
#include "torch/scan.h"
#include "torch/segmented.h"

namespace tp {
namespace {

constexpr const char *recurrence_name = "linear_recurrence", *scan_from_name = "scan_from";
Pattern scan_pattern("scan", scan::ladder), recurrence_pattern(recurrence_name, scan::ladder);

// One scan of the contiguous tensor `in` along `dim`.
scan::Args scan_args(const char* name, OpId id, const Tensor& in, int64_t dim, Tensor& out, bool reverse) {
  scan::Args args{};
  set_lines(args, in, dim);
  args.in = in.const_data_ptr();
  args.out = out.mutable_data_ptr();
  args.dtype = dtype_of_tensor(name, in);
  args.op = id;
  args.reverse = reverse;
  return args;
}

}  // namespace

Tensor Scan::kernel() const {
  const OpId id = scan_of("scan", op, exclusive, x);
  const int64_t along = wrap_dim("scan", dim, x.dim());
  const DType dtype = combining_dtype("scan", op, x);
  if (is_converted(op, x)) return with_converted(*this, &Scan::x);
  if (finds_index(op)) {
    return std::get<1>(ScanWithIndices{x, dim, op == "argmax" ? "max" : "min", reverse, algorithm}.kernel());
  }
  Tensor out = empty_result(x.sym_sizes(), x.options().dtype(combined_dtype(op, id, x)));
  if (is_done(out, scan::ladder, "scan", algorithm)) return out;
  const Tensor in = x.contiguous();
  scan::Args args = scan_args("scan", id, in, along, out, reverse);
  args.dtype = dtype;
  args.exclusive = exclusive;
  run(scan::ladder, scan::choose, "scan", algorithm, in, args);
  return out;
}

namespace {

// The arguments of a recurrence after broadcasting and promotion: a and b have one shape and one dtype, and `initial`
// has that shape without `dim`.
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
  check_same_device(recurrence_name, {{"a", &a}, {"b", &b}});
  if (initial) check_same_device(recurrence_name, {{"a", &a}, {"initial", &*initial}});
  auto types = at::native::update_result_type_state(b, at::native::update_result_type_state(a, {}));
  if (initial) types = at::native::update_result_type_state(*initial, types);
  const auto dtype = at::native::result_type(types);
  TORCH_CHECK_TYPE(at::isFloatingType(dtype), "linear_recurrence: dtype ", dtype,
                   " is not supported; supported: floating point");
  const auto both = broadcast_or_fail([&] { return at::broadcast_tensors({a.to(dtype), b.to(dtype)}); }, a, b, "b");
  Recurrence r{both[0], both[1], {}, wrap_dim(recurrence_name, dim, both[0].dim())};
  TORCH_CHECK(r.b.dim() > 0, "linear_recurrence: a and b need a dimension to run along, got scalars");
  if (initial) {
    auto shape = r.b.sym_sizes().vec();
    shape.erase(shape.begin() + r.dim);
    r.initial = broadcast_or_fail([&] { return initial->to(dtype).expand_symint(shape); }, r.b, *initial, "initial");
  }
  return r;
}

// The products of results and other numbers, which a rung may compute in the pass over the results (scan::Args).
struct Products {
  const Tensor& times;
  Tensor out;  // undefined if the rung does not
};

// Computes the recurrence without autograd. With `previous`, element k uses a[k - 1], the multiplier of the element
// before it.
Tensor solve(const Tensor& a, const Tensor& b, int64_t dim, const OptionalTensor& initial, bool reverse, bool previous,
             Str algorithm, Products* products = nullptr) {
  const Recurrence r = broadcast(a, b, dim, initial);
  Tensor out = empty_result(r.b.sym_sizes(), r.b.options());
  if (is_done(out, scan::ladder, recurrence_name, algorithm)) return out;
  const Tensor factor = r.a.contiguous(), in = r.b.contiguous();
  const Tensor start = r.initial ? r.initial->contiguous() : Tensor();
  scan::Args args = scan_args(recurrence_name, OpId::affine, in, r.dim, out, reverse);
  args.a = factor.const_data_ptr();
  args.initial = data_or_null(start);
  args.previous = previous;
  Tensor times;
  run(scan::ladder, scan::choose, recurrence_name, algorithm, in, args, [&](Str rung) {
    if (!products || !scan::multiplies(rung, args) || products->times.scalar_type() != out.scalar_type()) return;
    times = products->times.contiguous();
    products->out = at::empty_like(out);
    args.times = times.const_data_ptr();
    args.products = products->out.mutable_data_ptr();
  });
  return out;
}

}  // namespace

Tensor LinearRecurrence::kernel() const { return solve(a, b, dim, initial, reverse, false, algorithm); }

// ---- derivatives

namespace {

// y[k] = x[k + 1] in scan order; the last y is 0.
Tensor next(const Tensor& x, int64_t dim, bool reverse) {
  const SymInt n = x.sym_size(dim);
  const Tensor end = at::zeros_like(x.narrow_symint(dim, 0, 1));
  return reverse ? at::cat({end, x.narrow_symint(dim, 0, n - 1)}, dim)
                 : at::cat({x.narrow_symint(dim, 1, n - 1), end}, dim);
}

// y[k] = x[k - 1] in scan order; the first y is 0.
Tensor previous(const Tensor& x, int64_t dim, bool reverse) { return next(x, dim, !reverse); }

// R[k] = g[k] + a[k + 1] R[k + 1] in scan order. Where autograd is not involved, `solve` reads the shifted multipliers
// in place, and no shifted copy of a is made. Then it may also compute R[k] h[k - 1], where h is `products->times`.
Tensor adjoint_of(const Tensor& a, const Tensor& g, int64_t dim, bool reverse, Str algorithm,
                  Products* products = nullptr) {
  if (is_plain({a, g})) return solve(a, g, dim, {}, !reverse, true, algorithm, products);
  return call(LinearRecurrence{next(a, dim, reverse), g, dim, {}, !reverse, algorithm});
}

// y[k] = x[k] h[k - 1] in scan order, where `initial` or 0 precedes the first h. Where autograd is not involved, slices
// are multiplied in place, and no shifted copy of h is made; if `y` is given, it has all products but the first.
Tensor times_previous(const Tensor& x, const Tensor& h, const Tensor& initial, int64_t dim, bool reverse,
                      Tensor y = {}) {
  const SymInt n = h.sym_size(dim), first = reverse ? n - 1 : SymInt(0);
  const Tensor held = h.narrow_symint(dim, reverse ? 1 : 0, n - 1);
  if (is_plain({x, h, initial})) {
    if (!y.defined()) {
      y = at::empty_like(x);
      Tensor others = y.narrow_symint(dim, reverse ? 0 : 1, n - 1);
      at::mul_out(others, x.narrow_symint(dim, reverse ? 0 : 1, n - 1), held);
    }
    Tensor start = y.select_symint(dim, first);
    initial.defined() ? start.copy_(x.select_symint(dim, first) * initial) : start.zero_();
    return y;
  }
  const Tensor start = initial.defined() ? initial.unsqueeze(dim) : at::zeros_like(h.narrow_symint(dim, 0, 1));
  return x * (reverse ? at::cat({held, start}, dim) : at::cat({start, held}, dim));
}

// Solves h[k] = a[k] h[k - 1] + b[k] along `dim` where a is 0 at the first element of every row. All rows then form one
// long recurrence, which such a 0 restarts.
Tensor recurrence_over_runs(const Tensor& a, const Tensor& b, int64_t dim, bool reverse) {
  SymInt rows = 1, inner = 1;
  for (int64_t d = 0; d < b.dim(); ++d) (d <= dim ? rows : inner) *= b.sym_size(d);
  const auto lines = [&](const Tensor& x) { return x.reshape_symint({rows, inner}); };
  const Tensor all = at::mul(at::arange(2, b.options().dtype(at::kLong)), c10::Scalar(rows));
  return call(SegmentRecurrence{lines(a), lines(b), all, reverse, {}, "auto"}).view_symint(b.sym_sizes());
}

// The gradient of x, given the gradient g of its running extremum y. keeps[k] is 1 where y[k - 1] stays the extremum,
// so that x[k] does not take the lead.
Tensor extremum_vjp(const Scan& s, const Tensor& g, const Tensor& y, int64_t dim) {
  const auto acc = wide_dtype(s.x);
  const Tensor held = s.exclusive ? y : previous(y, dim, s.reverse);
  const Tensor keeps = ((s.op == "max" ? held >= s.x : held <= s.x) | held.isnan()).to(acc);
  const Tensor carries = next(keeps, dim, s.reverse);
  const Tensor from = s.exclusive ? next(g.to(acc), dim, s.reverse) : g.to(acc);
  const Tensor led = recurrence_over_runs(carries, from, dim, !s.reverse);
  const Tensor leads = previous(carries, dim, s.reverse) == 0;  // the first element always leads
  return at::where(leads, led, at::zeros_like(led)).to(s.x.scalar_type());
}

bool is_short(const Tensor& x) { return x.dim() == 0 || TORCH_GUARD_OR_FALSE(x.sym_numel().sym_eq(0)); }

}  // namespace

Tensors Scan::vjp(const Backward& b) const {
  const Tensor& g = b.grad();
  if (op == "sum") return {call(Scan{g, dim, op, exclusive, !reverse, algorithm})};
  if (is_short(g)) return {exclusive ? at::zeros_like(g) : g.clone()};  // at most one element: nothing to shift
  const int64_t along = wrap_dim("scan", dim, x.dim());
  if (op != "prod") return {extremum_vjp(*this, g, b.output(), along)};
  const auto acc = wide_dtype(x);
  const Tensor wide = x.to(acc), from = exclusive ? next(g.to(acc), along, reverse) : g.to(acc);
  const Tensor after = adjoint_of(wide, from, along, reverse, algorithm);
  return {(call(Scan{wide, along, op, true, reverse, algorithm}) * after).to(x.scalar_type())};
}

Tensors Scan::jvp(const Forward& f) const {
  const Tensor& t = f.tangent();
  if (op == "sum") return {call(Scan{t, dim, op, exclusive, reverse, algorithm})};
  if (is_short(t)) return {exclusive ? at::zeros_like(t) : t.clone()};
  const int64_t along = wrap_dim("scan", dim, x.dim());
  Tensor inclusive;
  if (op == "prod") {
    const auto acc = wide_dtype(x);
    const Tensor wide = x.to(acc), before = call(Scan{wide, along, op, true, reverse, algorithm});
    inclusive = call(LinearRecurrence{wide, t.to(acc) * before, along, {}, reverse, algorithm}).to(x.scalar_type());
  } else {
    const Tensor leader = std::get<1>(call(ScanWithIndices{x.detach(), along, op, reverse, algorithm}));
    inclusive = t.gather(along, leader);
  }
  return {exclusive ? previous(inclusive, along, reverse) : inclusive};
}

Tensors LinearRecurrence::vjp(const Backward& back) const {
  const Tensor &g = back.grad(), &h = back.output();
  const int64_t along = wrap_dim(recurrence_name, dim, h.dim());
  const Tensor factors = a.to(h.scalar_type()).expand_symint(h.sym_sizes());
  Tensor start, grad_a, grad_b, grad_initial;
  if (initial) {
    auto shape = h.sym_sizes().vec();
    shape.erase(shape.begin() + along);
    start = initial->to(h.scalar_type()).expand_symint(shape);
  }
  if (is_short(g)) {
    grad_a = at::zeros_like(g), grad_b = g;
    if (initial) grad_initial = at::zeros_like(start);
  } else {
    Products products{h, {}};
    grad_b =
        adjoint_of(factors, g, along, reverse, algorithm, back.wants(0) && is_plain({h, start}) ? &products : nullptr);
    if (back.wants(0)) grad_a = times_previous(grad_b, h, start, along, reverse, products.out);
    if (initial && back.wants(2)) {
      const SymInt first = reverse ? h.sym_size(along) - 1 : SymInt(0);
      grad_initial = factors.select_symint(along, first) * grad_b.select_symint(along, first);
    }
  }
  const auto fitted = [&](const Tensor& x, size_t i) { return x.defined() ? reduce_to(x, back.sizes(i)) : x; };
  return {fitted(grad_a, 0), fitted(grad_b, 1), fitted(grad_initial, 2)};
}

Tensors LinearRecurrence::jvp(const Forward& f) const {
  const Recurrence r = broadcast(a, b, dim, initial);
  const Tensor& h = f.output();
  const auto like = [](const Tensor& t, const Tensor& x) { return t.to(x.scalar_type()).expand_symint(x.sym_sizes()); };
  Tensor from, start;
  if (f.tangent(1).defined()) from = like(f.tangent(1), r.b);
  if (f.tangent(0).defined() && !is_short(h)) {
    from = plus(from, times_previous(like(f.tangent(0), r.a), h, r.initial.value_or(Tensor()), r.dim, reverse));
  }
  if (!from.defined()) from = at::zeros_like(h);
  if (f.tangent(2).defined()) start = like(f.tangent(2), *r.initial);
  return {call(LinearRecurrence{r.a, from, r.dim, start, reverse, algorithm})};
}

// ---- a scan that continues from a given prefix, for torch_patterns.distributed; it has no derivatives

namespace {

Tensor scan_from(const Tensor& x, const Tensor& initial, Str op, bool exclusive, bool reverse) {
  const OpId id = scan_of(scan_from_name, op, exclusive, x);
  TORCH_CHECK_VALUE(x.dim() == 1 && initial.dim() == 0, scan_from_name, ": x must be a vector and initial a scalar");
  TORCH_CHECK_TYPE(combined_dtype(op, id, x) == x.scalar_type() && initial.scalar_type() == x.scalar_type() &&
                       !at::isReducedFloatingType(x.scalar_type()) && !is_logical(op) && !finds_index(op),
                   scan_from_name, ": of ", x.scalar_type(), " and initial of ", initial.scalar_type(), " by '",
                   std::string(op), "' is not offered");
  check_same_device(scan_from_name, {{"x", &x}, {"initial", &initial}});
  const Tensor in = x.contiguous();
  Tensor out = empty_result(in.sym_sizes(), in.options());
  if (is_done(out, scan::ladder, scan_from_name, "auto")) return out;
  scan::Args args = scan_args(scan_from_name, id, in, 0, out, reverse);
  args.dtype = combining_dtype(scan_from_name, op, in);
  args.initial = initial.const_data_ptr();
  args.exclusive = exclusive;
  run(scan::ladder, scan::choose, scan_from_name, "auto", in, args);
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<Scan, LinearRecurrence>(m); }
TORCH_LIBRARY_FRAGMENT(torch_patterns_parts, m) {
  m.def("scan_from(Tensor x, Tensor initial, str op, bool exclusive, bool reverse) -> Tensor");
}
TORCH_LIBRARY_IMPL(torch_patterns_parts, CUDA, m) { m.impl(scan_from_name, &scan_from); }

}  // namespace tp
