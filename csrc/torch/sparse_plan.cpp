// torch_patterns::sparse_plan: checks, kernel, Meta.
//
// A plan is a stable sort of the entries by row or by column (exercise 14.3): argsort gives the order, by as many bits
// as the keys need; the histogram of the keys and its exclusive scan give the pointers. It converts any format to CSR
// or CSC, with which it can be multiplied from either side without atomics.
#include "sort/sort.h"
#include "torch/histogram.h"
#include "torch/operator.h"
#include "torch/scan.h"
#include "torch/segmented.h"
#include "torch/sort.h"
#include "torch/sparse.h"

namespace tp {
namespace {

constexpr const char* plan_name = "sparse_plan";

// For each of 0, 1, ..., n: the number of keys that are less.
Tensor pointers(const Tensor& keys, int64_t n) {
  const Tensor counts = call(Histogram{keys, n + 1, {}, {}, "auto"});
  return call(Scan{counts, 0, "sum", /*exclusive=*/true, /*reverse=*/false, "auto"}).to(keys.scalar_type());
}

bool may_lack_entries(const Structure& s) { return info_of(s.format).has(FormatInfo::may_lack_entries); }

// The other coordinate, in the order of perm. Padding follows the last entry; it belongs to no row but is checked as
// well.
Tensor beside(const Structure& s, const Tensor& other, const Tensor& perm) {
  const Tensor ordered = other.index_select(0, perm);
  return may_lack_entries(s) ? ordered.clamp_min(0) : ordered;
}

Plan build(const Structure& s, bool by_rows, Str algorithm) {
  const int64_t n = (by_rows ? s.rows : s.cols).expect_int();
  const auto [rows, cols] = coordinates(s);
  Tensor keys = by_rows ? rows : cols;
  if (may_lack_entries(s)) keys = keys.masked_fill(keys.lt(0), n);
  const Tensor perm = order_by(keys, n, algorithm);
  return {pointers(keys, n), perm, beside(s, by_rows ? cols : rows, perm)};
}

// Whether the format already has the requested order.
bool in_order(const Structure& s, bool by_rows) { return s.format == (by_rows ? Format::csr : Format::csc); }

}  // namespace

Tensor segments(const Tensor& ptrs, int64_t n) {
  return call(SegmentExpand{arange_like(ptrs, ptrs.size(0) - 1), ptrs, n, /*validate=*/false, "auto"});
}

Tensor order_by(const Tensor& keys, const SymInt& n, Str algorithm) {
  int64_t bits = 0;
  while (bits < 8 * keys.element_size() && (n.expect_int() >> bits) > 0) ++bits;
  return call(ArgSort{keys, 0, false, 0, bits, keys.scalar_type(), algorithm});
}

void check_plan(const char* op, const Structure& s, bool by_rows, const Tensor& ptrs, const Tensor& perm) {
  const SymInt n = by_rows ? s.rows : s.cols;
  TORCH_CHECK_TYPE(ptrs.scalar_type() == s[0].scalar_type() && perm.scalar_type() == s[0].scalar_type(), op,
                   ": plan_ptrs is ", ptrs.scalar_type(), " and plan_perm ", perm.scalar_type(), ", the indices are ",
                   s[0].scalar_type());
  check_same_device(op, {{"the matrix", &s[0]}, {"plan_ptrs", &ptrs}, {"plan_perm", &perm}});
  TORCH_CHECK_VALUE(ptrs.dim() == 1 && ptrs.sym_size(0) == n + 1, op, ": plan_ptrs has shape ", ptrs.sym_sizes(),
                    ", expected [", n + 1, "]");
  const auto stages = int64_t(8 / perm.element_size());
  const bool fits =
      perm.dim() == 1 || (perm.dim() == 2 && (perm.sym_size(0) == 2 || perm.sym_size(0) == 2 + stages + 1));
  TORCH_CHECK_VALUE(fits && perm.sym_size(-1) == s.entries(), op, ": plan_perm has shape ", perm.sym_sizes(),
                    ", expected [2, ", s.entries(), "], [", 2 + stages + 1, ", ", s.entries(), "] or [", s.entries(),
                    "]");
}

Plan plan_of(const char* op, const Structure& s, bool by_rows, const OptionalTensor& ptrs, const OptionalTensor& perm) {
  TORCH_CHECK_VALUE(ptrs.has_value() == perm.has_value(), op, ": plan_ptrs and plan_perm go together");
  if (in_order(s, by_rows)) return {s[0], {}, s[1]};
  if (!ptrs) return build(s, by_rows, "auto");
  check_plan(op, s, by_rows, *ptrs, *perm);
  if (perm->dim() == 2) {
    const Tensor all = perm->contiguous();
    Plan plan{ptrs->contiguous(), all.select(0, 0), all.select(0, 1)};
    if (all.size(0) > 2) {
      plan.stages = all.slice(0, 2, -1);
      plan.origin = all.select(0, -1);
    }
    return plan;
  }
  const auto [rows, cols] = coordinates(s);
  const Tensor& other = by_rows ? cols : rows;
  if (other.size(0) == 0) return {ptrs->contiguous(), perm->contiguous(), other};
  return {ptrs->contiguous(), perm->contiguous(), beside(s, other, perm->clamp(0, other.size(0) - 1))};
}

namespace {

// Both arguments and results are indices, so there is nothing to differentiate.
struct SparsePlan {
  static constexpr auto schema =
      "sparse_plan(str format, Tensor[] structure, SymInt rows, SymInt cols, SymInt section_rows=0, bool "
      "by_rows=False, str algorithm=\"auto\") -> (Tensor ptrs, Tensor perm, Tensor other)";
  Str format;
  Tensors structure;
  SymInt rows, cols, section_rows;
  bool by_rows;
  Str algorithm;

  std::tuple<Tensor, Tensor, Tensor> kernel() const;
};

std::tuple<Tensor, Tensor, Tensor> SparsePlan::kernel() const {
  const Structure given{format_of(plan_name, format), structure, rows, cols, section_rows};
  check_structure(plan_name, given);
  if (given[0].is_meta()) {
    check_algorithm(sort::ladder, plan_name, algorithm);
    const auto options = given[0].options();
    const SymInt n = given.entries();
    return {empty_result({(by_rows ? rows : cols) + 1}, options), empty_result({n}, options),
            empty_result({n}, options)};
  }
  const Structure s = given.contiguous();
  if (!in_order(s, by_rows)) {
    const Plan plan = build(s, by_rows, algorithm);
    return {plan.ptrs, plan.perm, plan.other};
  }
  check_algorithm(sort::ladder, plan_name, algorithm);
  const auto fresh = [](const Tensor& t) { return t.clone(at::MemoryFormat::Contiguous); };
  return {fresh(s[0]), arange_like(s[1], s[1].size(0)), fresh(s[1])};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<SparsePlan>(m); }

}  // namespace
}  // namespace tp
