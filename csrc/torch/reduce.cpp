// torch_patterns::reduce: checks, kernel, Meta, derivatives.
//
// The derivatives are compositions of operators, so every order of derivative exists and costs O(n):
//   sum, mean  the gradient, expanded; forward, the same reduction of the tangent;
//   prod       grad x[j] = g * (product before j) * (product after j): two exclusive scans, which are exact for zeros;
//   max, min   the gradient goes to the first of equal values, which argmax or argmin finds again;
//   logsumexp  grad x = g exp(x - y), and 0 where y is -inf;
//   any, all and the bitwise operators have none, because their results are discrete.
// The forward mode of prod, max, min and logsumexp is the sum of the tangent times the same factors.
#include "torch/reduce.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "reduction/reduction.h"
#include "torch/gradient.h"
#include "torch/named_ops.h"
#include "torch/scan.h"

namespace tp {
namespace {

Pattern pattern("reduce", reduction::ladder);

// ---- checks

using Dims = std::optional<std::vector<int64_t>>;
template <class T>
using PerDim = c10::SmallVector<T, 8>;  // on the stack up to 8 dimensions
using Mask = PerDim<bool>;              // which dimensions are reduced

// No dimensions, or none given, means all of them.
Mask reduced_dims(int64_t dims, const Dims& dim) {
  const bool all = !dim || dim->empty();
  Mask reduced(size_t(dims), all);
  if (all) return reduced;
  Mask seen(size_t(max(dims, int64_t(1))), false);
  for (const int64_t d : *dim) {
    const auto at = size_t(wrap_dim("reduce", d, dims));
    TORCH_CHECK(!seen[at], "reduce: dim ", at, " appears more than once in the list of dims");
    seen[at] = true;
    if (dims > 0) reduced[at] = true;
  }
  return reduced;
}

void check(const Tensor& x, const Dims& dim, Str name, OpId op, const Mask& reduced) {
  dtype_of_tensor("reduce", x);
  if (needs_floats(op)) {
    TORCH_CHECK_TYPE(x.is_floating_point(), "reduce: op '", std::string(name), "' needs floating point, got ",
                     x.scalar_type());
  }
  if (!finds_index(name)) return;
  TORCH_CHECK_VALUE(!dim || dim->size() < 2, "reduce: op '", std::string(name), "' takes one dim or none, got ", *dim);
  for (int64_t d = 0; d < x.dim(); ++d) {
    const bool empty = reduced[size_t(d)] && TORCH_GUARD_OR_FALSE(x.sym_size(d).sym_eq(0));
    TORCH_CHECK_INDEX(!empty, "reduce: op '", std::string(name), "' over dim ", d, ", which has no elements");
  }
}

PerDim<SymInt> result_sizes(SymIntArrayRef sizes, const Mask& reduced, bool keepdim) {
  PerDim<SymInt> result;
  for (size_t d = 0; d < reduced.size(); ++d) {
    if (keepdim || !reduced[d]) result.push_back(reduced[d] ? SymInt(1) : sizes[d]);
  }
  return result;
}

// ---- the array as [outer, n, inner]

// The order of dimensions that makes the reduced ones adjacent: unchanged or, if others are between them, with these
// before them. `skip`: dimensions of size 1, which do not matter.
PerDim<int64_t> neighbours(const Mask& reduced, const Mask& skip) {
  PerDim<int64_t> before, among, after;
  int changes = 0;
  bool previous = false;
  for (size_t d = 0; d < reduced.size(); ++d) {
    (reduced[d] ? among : after).push_back(int64_t(d));
    if (skip[d]) continue;
    changes += reduced[d] && !previous;
    previous = reduced[d];
    if (!reduced[d]) continue;
    before.append(after.begin(), after.end());
    after.clear();
  }
  before.append(among.begin(), among.end());
  before.append(after.begin(), after.end());
  if (changes < 2) std::sort(before.begin(), before.end());
  return before;
}

// Returns x with its dimensions in that order, and the products of the sizes before, among and after the reduced ones.
template <class Int>
struct Lines {
  PerDim<int64_t> order;
  PerDim<Int> sizes;
  Int outer = 1, n = 1, inner = 1;

  template <class Sizes>
  Lines(const Sizes& x, const Mask& reduced, const Mask& skip) : order(neighbours(reduced, skip)) {
    const bool any = std::find(reduced.begin(), reduced.end(), true) != reduced.end();
    bool begun = !any;
    for (const int64_t d : order) {
      sizes.push_back(x[size_t(d)]);
      begun = begun || (reduced[size_t(d)] && !skip[size_t(d)]);
      Int& part = reduced[size_t(d)] ? n : begun ? inner : outer;
      part = part * sizes.back();
    }
  }
};

// Whether a result has the same bits however its elements are grouped.
bool is_exact(OpId op, const Tensor& x) { return !rounds(op) || !x.is_floating_point(); }

Mask ones_of(const Tensor& x) {
  Mask ones;
  for (const int64_t size : x.sizes()) ones.push_back(size == 1);
  return ones;
}

// Whether dimensions are not in the order of memory, the outermost first. An expanded x has no such order.
bool is_out_of_order(const Tensor& x) {
  int64_t least = std::numeric_limits<int64_t>::max();
  bool sorted = true;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (x.size(d) == 1) continue;
    if (x.stride(d) == 0) return false;
    sorted = sorted && x.stride(d) <= least;
    least = x.stride(d);
  }
  return !sorted;
}

// Whether the elements of a row may be combined in any order: an index counts them in the order of the dimensions.
bool has_any_order(const Reduce& r, const Mask& reduced) {
  int lines = 0;
  for (size_t d = 0; d < reduced.size(); ++d) lines += reduced[d] && r.x.size(int64_t(d)) != 1;
  return lines < 2 || !finds_index(r.op);
}

// Reduces x with its dimensions in the order of memory, so that a dense x is read where it is. The reduced dimensions
// are kept.
Tensor in_memory_order(const Reduce& r, const Mask& reduced) {
  PerDim<int64_t> order(reduced.size()), positions(reduced.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return r.x.stride(a) > r.x.stride(b); });
  std::vector<int64_t> dims;
  for (size_t i = 0; i < order.size(); ++i) {
    positions[size_t(order[i])] = int64_t(i);
    if (reduced[size_t(order[i])]) dims.push_back(int64_t(i));
  }
  const Reduce ordered{r.x.permute(order), dims, r.op, /*keepdim=*/true, r.algorithm};
  return ordered.kernel().permute(positions).contiguous();
}

// What a kernel reads, and how (reduction.h).
struct Source {
  Tensor in;  // contiguous, unless `layout` says what is in memory
  int64_t outer, n, inner, parts = 1, between = 1;
  std::optional<reduction::Layout> layout = {};
};

// Whether the rung is the one that "auto" means.
bool is_default(const Reduce& r) {
  return r.algorithm == "auto" || r.algorithm == reduction::choose({}, Device{r.x.is_cuda()});
}

// The sizes of x as [groups, parts, between, length, inner], if its parts and lengths are reduced.
using Parts = std::array<int64_t, 5>;

// Sums over all but the channels of images are such. On CUDA, the kernel reads them there. The parts must not be very
// short and not too many, or a copy is faster. Exact results are faster one dimension after another (reduced_first).
std::optional<Parts> parts_of(const Reduce& r, OpId op, const Mask& reduced) {
  if (!r.x.is_cuda() || finds_index(r.op) || !is_default(r)) return {};
  Parts sizes{1, 1, 1, 1, 1};
  size_t at = 0;
  for (int64_t d = 0; d < r.x.dim(); ++d) {
    if (r.x.size(d) != 1 && reduced[size_t(d)] != (at % 2 == 1)) ++at;
    if (at > 4) return {};
    sizes[at] *= r.x.size(d);
  }
  const auto [groups, parts, between, length, inner] = sizes;
  if (at < 3 || groups * between * inner == 0) return {};
  constexpr int64_t shortest = 8, most_parts = 1 << 14;
  if (parts > most_parts || length < shortest) return {};
  if (is_exact(op, r.x) && groups * inner > 1) return {};
  return sizes;
}

// The last reduced dimensions that are neighbours, if others come before them, with kept ones between, and the result
// is exact: these can be reduced first, so that a contiguous x is read where it is. Otherwise none.
std::vector<int64_t> reduced_first(const Reduce& r, OpId op, const Mask& reduced) {
  if (!is_exact(op, r.x) || finds_index(r.op) || !is_default(r) || parts_of(r, op, reduced)) return {};
  if (!r.x.is_contiguous()) return {};
  std::vector<int64_t> last;
  bool kept = false;  // whether a kept dimension comes before the last ones
  for (int64_t d = r.x.dim() - 1; d >= 0; --d) {
    if (r.x.size(d) == 1) continue;
    if (reduced[size_t(d)] && kept) return last;
    if (reduced[size_t(d)]) last.push_back(d);
    kept = !reduced[size_t(d)] && !last.empty();
  }
  return {};
}

// Where the elements are of an x that is not contiguous, which the CPU reads there; `in` is x with its dimensions in
// the order of `lines`. If neighbours are too far apart, or few, a copy is faster.
std::optional<reduction::Layout> layout_of(const Reduce& r, const Tensor& in, const Lines<int64_t>& lines,
                                           const Mask& reduced) {
  if (in.is_cuda() || in.is_contiguous() || !is_default(r)) return {};
  reduction::Layout layout;
  bool begun = false;  // whether reduced dimensions have come
  for (size_t d = 0; d < lines.order.size(); ++d) {
    const int64_t size = in.size(int64_t(d)), stride = in.stride(int64_t(d));
    if (size == 1) continue;
    const bool is_reduced = reduced[size_t(lines.order[d])];
    begun = begun || is_reduced;
    auto& dims = is_reduced ? layout.n : begun ? layout.inner : layout.outer;
    if (!dims.empty() && dims.back().stride == size * stride) {
      dims.back() = {dims.back().size * size, stride};
    } else {
      dims.push_back({size, stride});
    }
  }
  const auto& last = !layout.inner.empty() ? layout.inner : !layout.n.empty() ? layout.n : layout.outer;
  const bool is_even = layout.outer.size() < 2 && layout.n.size() < 2 && layout.inner.size() < 2;
  constexpr int64_t line = 64, few = 16;  // bytes of a cache line; elements
  if (last.empty() || last.back().stride * in.element_size() >= line) return {};
  if (last.back().size < few && !(is_even && last.back().stride == 1)) return {};
  return layout;
}

// x itself, or a copy of it if no kernel reads it where it is.
Source source_of(const Reduce& r, OpId op, const Mask& reduced) {
  if (const auto sizes = parts_of(r, op, reduced)) {
    const auto [groups, parts, between, length, inner] = *sizes;
    return {r.x.contiguous(), groups * between, parts * length, inner, parts, between};
  }
  const Lines<int64_t> lines(r.x.sizes(), reduced, ones_of(r.x));
  const bool in_order = std::is_sorted(lines.order.begin(), lines.order.end());
  Source source{in_order ? r.x : r.x.permute(lines.order), lines.outer, lines.n, lines.inner};
  source.layout = layout_of(r, source.in, lines, reduced);
  if (!source.layout) source.in = source.in.contiguous();
  return source;
}

}  // namespace

Tensor Reduce::kernel() const {
  const OpId id = op_of("reduce", Combines::reduction, op, x);
  const Mask reduced = reduced_dims(x.dim(), dim);
  check(x, dim, op, id, reduced);
  if (is_converted(op, x)) return with_converted(*this, &Reduce::x);
  Tensor out =
      empty_result(result_sizes(x.sym_sizes(), reduced, keepdim), x.options().dtype(combined_dtype(op, id, x)));
  if (is_done(out, reduction::ladder, "reduce", algorithm)) return out;
  if (is_out_of_order(x) && has_any_order(*this, reduced)) return in_memory_order(*this, reduced).view(out.sizes());
  if (const auto last = reduced_first(*this, id, reduced); !last.empty()) {
    const Tensor partial = Reduce{x, last, op, /*keepdim=*/true, algorithm}.kernel();
    return Reduce{partial, dim, op, keepdim, algorithm}.kernel();
  }
  const Source s = source_of(*this, id, reduced);
  const reduction::Args args{s.in.const_data_ptr(),
                             out.mutable_data_ptr(),
                             s.outer,
                             s.n,
                             s.inner,
                             combining_dtype("reduce", op, x),
                             id,
                             s.parts,
                             s.between,
                             s.layout ? &*s.layout : nullptr};
  run(reduction::ladder, reduction::choose, "reduce", algorithm, s.in, args);
  return out;
}

Autocast Reduce::autocast() const {
  return rounds(op_of("reduce", Combines::reduction, op, x)) ? Autocast::float32 : Autocast::none;
}

namespace {

// Reshapes to [outer, n, inner] and back, by operators that can be differentiated.
struct SymLines : Lines<SymInt> {
  Mask reduced;
  SymLines(SymIntArrayRef sizes, const Mask& mask) : Lines(sizes, mask, Mask(mask.size(), false)), reduced(mask) {}

  Tensor to(const Tensor& x, const SymInt& length) const {
    return x.permute(order).reshape_symint({outer, length, inner});
  }
  Tensor from(const Tensor& y) const {
    std::vector<int64_t> inverse(order.size());
    for (size_t i = 0; i < order.size(); ++i) inverse[size_t(order[i])] = int64_t(i);
    return y.reshape_symint(sizes).permute(inverse);
  }
};

// Returns `y`, a result or its gradient, with the reduced dimensions kept.
Tensor with_kept(Tensor y, const Mask& reduced, bool keepdim) {
  for (size_t d = 0; d < reduced.size(); ++d) {
    if (reduced[d] && !keepdim) y = y.unsqueeze(int64_t(d));
  }
  return y;
}

// The number of elements that each result combines.
SymInt count_of(SymIntArrayRef sizes, const Mask& reduced) {
  SymInt count = 1;
  for (size_t d = 0; d < reduced.size(); ++d) {
    if (reduced[d]) count = count * sizes[d];
  }
  return count;
}

// d y / d x of a product or a logsumexp, elementwise, in the wide dtype; y with the reduced dimensions kept.
Tensor factors_of(const Reduce& r, const SymLines& lines, const Tensor& y) {
  const Tensor wide = r.x.to(wide_dtype(r.x));
  if (r.op == "prod") {
    const Tensor values = lines.to(wide, lines.n);
    const auto products = [&](bool reverse) {
      return call(Scan{values, 1, "prod", /*exclusive=*/true, reverse, "auto"});
    };
    return lines.from(products(false) * products(true));
  }
  const Tensor most = y.to(wide.scalar_type());
  return (wide - most.masked_fill(most == -std::numeric_limits<double>::infinity(), 0)).exp();
}

// The index of the extremum of each line [outer, n, inner]: [outer, 1, inner].
Tensor first_extremum(const Reduce& r, const Tensor& values) {
  return call(Reduce{values.detach(), std::vector<int64_t>{1}, r.op == "max" ? "argmax" : "argmin", true, r.algorithm});
}

}  // namespace

Tensors Reduce::vjp(const Backward& b) const {
  const auto sizes = b.sizes(0);
  const Mask reduced = reduced_dims(int64_t(sizes.size()), dim);
  const Tensor g = with_kept(b.grad(), reduced, keepdim);
  if (op == "sum") return {g.expand_symint(sizes)};
  if (op == "mean") return {(g / at::Scalar(count_of(sizes, reduced))).expand_symint(sizes)};
  if (TORCH_GUARD_OR_FALSE(x.sym_numel().sym_eq(0))) return {at::zeros_like(x)};
  const SymLines lines(sizes, reduced);
  if (op == "max" || op == "min") {
    const Tensor values = lines.to(x, lines.n);
    return {lines.from(at::zeros_like(values).scatter(1, first_extremum(*this, values), lines.to(g, 1)))};
  }
  const Tensor y = op == "logsumexp" ? with_kept(b.output(), reduced, keepdim) : Tensor();
  return {(factors_of(*this, lines, y) * g).to(x.scalar_type())};
}

Tensors Reduce::jvp(const Forward& f) const {
  const Tensor& t = f.tangent();
  if (op == "sum" || op == "mean") return {call(Reduce{t, dim, op, keepdim, algorithm})};
  if (TORCH_GUARD_OR_FALSE(x.sym_numel().sym_eq(0))) return {at::zeros_like(f.output())};
  const Mask reduced = reduced_dims(x.dim(), dim);
  const SymLines lines(x.sym_sizes(), reduced);
  if (op == "max" || op == "min") {
    const Tensor first = first_extremum(*this, lines.to(x, lines.n));
    return {lines.to(t, lines.n).gather(1, first).view_symint(f.output().sym_sizes())};
  }
  const Tensor y = op == "logsumexp" ? with_kept(f.output(), reduced, keepdim) : Tensor();
  const Tensor product = factors_of(*this, lines, y) * t;
  return {call(Reduce{product, dim, "sum", keepdim, algorithm}).to(x.scalar_type())};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<Reduce>(m); }

}  // namespace tp
