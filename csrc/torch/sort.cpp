// torch_patterns::sort, sort_keys, sort_pairs, argsort and lexsort: checks, kernels, Meta, derivatives.
//
// A sort is a permutation. `take` permutes values and tangents by the indices, and `put` moves gradients back by the
// same indices; each is the derivative of the other, so derivatives of every order exist. sort returns the indices, but
// sort_keys and sort_pairs do not: if a derivative is needed, they are computed as an argsort, whose result is
// recorded, followed by a take.
#include "torch/sort.h"

#include <ATen/ATen.h>

#include "torch/permutation.h"

namespace tp {
namespace {

using Two = std::tuple<Tensor, Tensor>;

constexpr const char *sort_name = "sort", *keys_name = "sort_keys", *pairs_name = "sort_pairs", *arg_name = "argsort",
                     *lex_name = "lexsort";
Pattern pattern("sort", sort::ladder);

void check_index_dtype(const char* name, const Tensor& x, int64_t dim, at::ScalarType dtype) {
  TORCH_CHECK_TYPE(dtype == at::kLong || dtype == at::kInt, name, ": index_dtype must be int32 or int64, got ", dtype);
  if (dtype == at::kLong || x.dim() == 0) return;
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  TORCH_CHECK_VALUE(TORCH_GUARD_OR_TRUE(x.sym_size(dim).sym_le(most)), name, ": index_dtype int32 does not hold the ",
                    x.sym_size(dim), " positions of dim ", dim);
}

// to_rows returns a contiguous tensor whose last dimension is `dim` of x; from_rows is its inverse.
Tensor to_rows(const Tensor& x, int64_t dim) { return canonical(dim + 1 >= x.dim() ? x : x.movedim(dim, -1)); }
Tensor from_rows(const Tensor& x, int64_t dim) {
  return !x.defined() || dim + 1 >= x.dim() ? x : x.movedim(-1, dim).clone(at::MemoryFormat::Contiguous);
}

// One sort along a dimension.
struct Problem {
  const char* name;
  Tensor keys;
  int64_t dim;
  bool descending;
  int64_t begin_bit;
  OptionalInt end_bit;
  Str algorithm;
  bool wants_keys = true;
  // The payload: values or, of this dtype, the original indices of the keys, or nothing.
  Tensor values = {};
  OptionalDtype index_dtype = {};

  // Returns what rungs need to know of the order, and the dimension counted from the front.
  std::pair<sort::Args, int64_t> check() const {
    const auto args = sort_args(name, keys, descending, begin_bit, end_bit);
    const int64_t along = wrap_dim(name, dim, keys.dim());
    if (values.defined()) check_pairs(name, {"keys", keys}, {"values", values});
    if (index_dtype) check_index_dtype(name, keys, along, *index_dtype);
    return {args, along};
  }

  // Returns the sorted keys and the payload; what is not wanted is undefined.
  Two run() const {
    auto [args, along] = check();
    const auto payload = index_dtype        ? *index_dtype
                         : values.defined() ? values.scalar_type()
                                            : at::ScalarType::Undefined;
    const auto empty = [&, payload](SymIntArrayRef sizes) {
      const auto result = [&](bool wanted, at::ScalarType dtype) {
        return wanted ? empty_result(sizes, keys.options().dtype(dtype)) : Tensor();
      };
      return Two(result(wants_keys, keys.scalar_type()), result(payload != at::ScalarType::Undefined, payload));
    };
    if (is_done(keys, sort::ladder, name, algorithm)) return empty(keys.sym_sizes());
    const Tensor in = to_rows(keys, along), moving = values.defined() ? to_rows(values, along) : values;
    auto [sorted, moved] = empty(in.sym_sizes());
    args.keys = in.const_data_ptr();
    args.n = in.dim() ? in.size(-1) : 1;
    args.rows = in.numel() / args.n;
    if (sorted.defined()) args.keys_out = sorted.mutable_data_ptr();
    if (moved.defined()) give_values(args, moving, moved);
    tp::run(sort::ladder, sort::choose, name, algorithm, in, args);
    return {from_rows(sorted, along), from_rows(moved, along)};
  }

  // The indices of the sorted keys in the input, which derivatives read.
  Tensor order() const {
    check();
    return call(ArgSort{keys, dim, descending, begin_bit, end_bit, at::kLong, algorithm});
  }
};

Problem problem_of(const SortKeys& s) {
  return {keys_name, s.x, s.dim, s.descending, s.begin_bit, s.end_bit, s.algorithm};
}
Problem problem_of(const SortPairs& s) {
  TORCH_CHECK_TYPE(s.values.defined(), pairs_name, ": values must be a tensor, got NoneType");
  return {pairs_name, s.keys, s.dim, s.descending, s.begin_bit, s.end_bit, s.algorithm, true, s.values};
}

}  // namespace

// ---- sort

Two Sort::kernel() const {
  return Problem{sort_name, x, dim, descending, 0, {}, algorithm, true, {}, index_dtype.value_or(at::kLong)}.run();
}

Tensors Sort::vjp(const Backward& b) const { return {put(b.grad(), b.output(1), dim)}; }

Tensors Sort::jvp(const Forward& f) const { return {take(f.tangent(), f.output(1), dim)}; }

// ---- sort_keys

Tensor SortKeys::kernel() const { return std::get<0>(problem_of(*this).run()); }

Tensor SortKeys::record(Tensor& order) const {
  order = problem_of(*this).order();
  return take(x, order, dim);
}

Tensors SortKeys::vjp(const Backward& b) const { return {put(b.grad(), b.recorded(), dim)}; }

Tensors SortKeys::jvp(const Forward& f) const { return {take(f.tangent(), f.recorded(), dim)}; }

// ---- sort_pairs

Two SortPairs::kernel() const { return problem_of(*this).run(); }

Two SortPairs::record(Tensor& order) const {
  order = problem_of(*this).order();
  return {take(keys, order, dim), take(values, order, dim)};
}

Tensors SortPairs::vjp(const Backward& b) const {
  return {put(b.grad(0), b.recorded(), dim), put(b.grad(1), b.recorded(), dim)};
}

Tensors SortPairs::jvp(const Forward& f) const {
  return {take(f.tangent(0), f.recorded(), dim), take(f.tangent(1), f.recorded(), dim)};
}

// ---- argsort and lexsort, which have no derivative

Tensor ArgSort::kernel() const {
  const auto dtype = index_dtype.value_or(at::kLong);
  const Problem p{arg_name, x, dim, descending, begin_bit, end_bit, algorithm, /*wants_keys=*/false, {}, dtype};
  return std::get<1>(p.run());
}

// Sorts by one key after another, the primary key last. Sorts are stable, so ties keep the order of the earlier keys.
Tensor LexSort::kernel() const {
  TORCH_CHECK_VALUE(!keys.empty(), lex_name, ": keys must hold one tensor at least");
  const Tensor& first = keys[0];
  for (size_t k = 0; k < keys.size(); ++k) {
    const std::string name = "keys[" + std::to_string(k) + "]";
    key_type(lex_name, keys[k]);
    check_same_device(lex_name, {{"keys[0]", &first}, {name.c_str(), &keys[k]}});
    check_same_shape(lex_name, {"keys[0]", first}, {name.c_str(), keys[k]});
  }
  const int64_t along = wrap_dim(lex_name, dim, first.dim());
  const auto dtype = index_dtype.value_or(at::kLong);
  check_index_dtype(lex_name, first, along, dtype);
  check_algorithm(sort::ladder, lex_name, algorithm);
  if (first.is_meta()) return empty_result(first.sym_sizes(), first.options().dtype(dtype));
  const auto order_of = [&](const Tensor& key) {
    return ArgSort{key, along, descending, 0, {}, at::kLong, algorithm}.kernel();
  };
  Tensor order = order_of(first);
  for (size_t k = 1; k < keys.size(); ++k) {
    order = take(order, order_of(take(keys[k], order, along)), along);
  }
  return order.to(dtype);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<Sort, SortKeys, SortPairs, ArgSort, LexSort>(m); }

}  // namespace tp
