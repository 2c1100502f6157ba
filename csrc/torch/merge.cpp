// torch_patterns::merge, merge_pairs, merge_backward and co_rank: checks, kernels, Meta, derivatives.
//
// A merge is a permutation that the keys determine: in forward mode merge_pairs moves the tangents as it moves values.
// The gradient is the inverse permutation: merge_backward returns merged values to their sources, given the keys. Its
// own derivative is merge_pairs with the gradients as values, so derivatives of every order are calls of these two.
#include "merge/merge.h"

#include <ATen/ATen.h>

#include <limits>

#include "merge/validate.h"
#include "torch/permutation.h"

namespace tp {
namespace {

using Two = std::tuple<Tensor, Tensor>;

constexpr const char *merge_name = "merge", *pairs_name = "merge_pairs", *backward_name = "merge_backward",
                     *rank_name = "co_rank";
Pattern merge_pattern(merge_name, merge::ladder), rank_pattern(rank_name, co_rank_ladder::ladder);

struct Merge {
  static constexpr auto schema =
      "merge(Tensor a, Tensor b, bool descending=False, bool validate=False, str algorithm=\"auto\") -> Tensor";
  Tensor a, b;
  bool descending, validate;
  Str algorithm;

  TP_DIFFERENTIABLE(Tensor);
};

struct MergePairs {
  static constexpr auto schema =
      "merge_pairs(Tensor keys_a, Tensor values_a, Tensor keys_b, Tensor values_b, bool descending=False, bool "
      "validate=False, str algorithm=\"auto\") -> (Tensor, Tensor)";
  Tensor keys_a, values_a, keys_b, values_b;
  bool descending, validate;
  Str algorithm;

  TP_DIFFERENTIABLE(Two);
  bool keeps(size_t input) const { return input % 2 == 0; }
  bool depends(size_t output, size_t input) const { return input % 2 == output; }
};

struct MergeBackward {
  static constexpr auto schema =
      "merge_backward(Tensor grad, Tensor a, Tensor b, bool descending=False, str algorithm=\"auto\") -> (Tensor, "
      "Tensor)";
  Tensor grad, a, b;
  bool descending;
  Str algorithm;

  TP_DIFFERENTIABLE(Two);
  bool keeps(size_t input) const { return input != 0; }
  bool depends(size_t, size_t input) const { return input == 0; }
};

struct CoRank {
  static constexpr auto schema =
      "co_rank(Tensor k, Tensor a, Tensor b, bool descending=False, str algorithm=\"auto\") -> Tensor";
  Tensor k, a, b;
  bool descending;
  Str algorithm;

  Tensor kernel() const;
};

// ---- checks

// The shape of the result: equal leading dimensions, and the sum of the last ones.
Sizes check_keys(const char* op, const Named& first, const Named& second) {
  const Tensor &a = first.tensor, &b = second.tensor;
  check_alike(op, first, second);
  key_type(op, a);
  TORCH_CHECK(a.dim() > 0 && b.dim() > 0, op, ": ", first.name, " and ", second.name, " need a dimension, got scalars");
  Sizes shape = a.sym_sizes().vec();
  const auto others = b.sym_sizes();
  const size_t rows = shape.size() - 1;
  const bool ranks_fit = a.dim() == b.dim();
  TORCH_SYM_CHECK(ranks_fit ? sym_equals(others.slice(0, rows), a.sym_sizes().slice(0, rows)) : c10::SymBool(false), op,
                  ": all but the last sizes must be equal; ", first.name, " has shape ", a.sym_sizes(), ", ",
                  second.name, " has ", b.sym_sizes());
  shape.back() = shape.back() + others.back();
  return shape;
}

// ---- kernels: CPU and CUDA alike

merge::Sequences sequences(const char* op, const Tensor& a, const Tensor& b, bool descending) {
  const int64_t m = a.size(-1), n = b.size(-1);
  int64_t rows = 1;
  for (int64_t d = 0; d < a.dim() - 1; ++d) rows *= a.size(d);
  return {a.const_data_ptr(), b.const_data_ptr(), rows, m, n, key_type(op, a), descending};
}

// "[1, 3]": the index of the element at a flat position.
std::string index(const Tensor& x, int64_t flat) {
  std::string text = "]";
  for (int64_t d = x.dim() - 1; d >= 0; --d) {
    text = (d ? ", " : "[") + std::to_string(flat % x.size(d)) + text;
    flat /= x.size(d);
  }
  return text;
}

// Raises ValueError for the first key that comes before its predecessor. Takes one synchronization.
void check_sorted(const char* op, const merge::Sequences& in,
                  std::initializer_list<std::pair<const char*, Tensor>> keys) {
  refuse_capture((std::string(op) + ": validate=True").c_str(), keys.begin()->second);
  if (in.rows * (in.m + in.n) == 0) return;
  constexpr int64_t none = std::numeric_limits<int64_t>::max();
  const Tensor descents = at::full({2}, none, keys.begin()->second.options().dtype(at::kLong));
  with_context(descents,
               [&](TorchContext& context) { merge::find_descents(in, descents.mutable_data_ptr<int64_t>(), context); });
  const Tensor found = descents.cpu();
  const int64_t* descent = found.const_data_ptr<int64_t>();
  for (const auto& [argument, x] : keys) {
    const int64_t p = *descent++;
    if (p == none) continue;
    const Tensor flat = x.reshape(-1);
    TORCH_CHECK_VALUE(false, op, ": ", argument, " is not sorted ", in.descending ? "descending" : "ascending", ": ",
                      argument, index(x, p), " is ", flat[p].item(), ", after ", flat[p - 1].item());
  }
}

Tensor Merge::kernel() const {
  Tensor out = empty_result(check_keys(merge_name, {"a", a}, {"b", b}), a.options());
  if (is_done(out, merge::ladder, merge_name, algorithm)) return out;
  const Tensor x = canonical(a), y = canonical(b);
  merge::Args args{};
  args.in = sequences(merge_name, x, y, descending);
  args.keys = out.mutable_data_ptr();
  if (validate) check_sorted(merge_name, args.in, {{"a", x}, {"b", y}});
  run(merge::ladder, merge::choose, merge_name, algorithm, x, args);
  return out;
}

Two MergePairs::kernel() const {
  const Sizes shape = check_keys(pairs_name, {"keys_a", keys_a}, {"keys_b", keys_b});
  check_pairs(pairs_name, {"keys_a", keys_a}, {"values_a", values_a});
  check_pairs(pairs_name, {"keys_b", keys_b}, {"values_b", values_b});
  check_alike(pairs_name, {"values_a", values_a}, {"values_b", values_b});
  Tensor keys = empty_result(shape, keys_a.options()), values = empty_result(shape, values_a.options());
  if (is_done(keys, merge::ladder, pairs_name, algorithm)) return {keys, values};
  const Tensor x = canonical(keys_a), y = canonical(keys_b), u = canonical(values_a), v = canonical(values_b);
  merge::Args args{};
  args.in = sequences(pairs_name, x, y, descending);
  args.keys = keys.mutable_data_ptr();
  args.a_values = u.const_data_ptr();
  args.b_values = v.const_data_ptr();
  args.values = values.mutable_data_ptr();
  args.value_bytes = int(u.element_size());
  if (validate) check_sorted(pairs_name, args.in, {{"keys_a", x}, {"keys_b", y}});
  run(merge::ladder, merge::choose, pairs_name, algorithm, x, args);
  return {keys, values};
}

Two MergeBackward::kernel() const {
  const Sizes shape = check_keys(backward_name, {"a", a}, {"b", b});
  check_same_device(backward_name, {{"a", &a}, {"grad", &grad}});
  TORCH_SYM_CHECK(sym_equals(grad.sym_sizes(), shape), backward_name, ": the merge has shape ", SymIntArrayRef(shape),
                  ", grad has ", grad.sym_sizes());
  Tensor grad_a = empty_result(a.sym_sizes(), grad.options()), grad_b = empty_result(b.sym_sizes(), grad.options());
  if (is_done(grad, co_rank_ladder::ladder, backward_name, algorithm)) return {grad_a, grad_b};
  const Tensor g = canonical(grad), x = canonical(a), y = canonical(b);
  co_rank_ladder::Args args{};
  args.step = co_rank_ladder::Step::unmerge;
  args.in = sequences(backward_name, x, y, descending);
  args.merged = g.const_data_ptr();
  args.a_out = grad_a.mutable_data_ptr();
  args.b_out = grad_b.mutable_data_ptr();
  args.value_bytes = int(g.element_size());
  run(co_rank_ladder::ladder, co_rank_ladder::choose, backward_name, algorithm, g, args);
  return {grad_a, grad_b};
}

// ---- co_rank

// The shape of k as [rows..., queries], and of the result. For single sequences k has any shape; for rows of sequences
// it has the rows' dimensions and one more for the queries, or only the rows' dimensions for one query per row.
struct Queries {
  Sizes expanded, result;
};

Queries check(const CoRank& c) {
  const Tensor &k = c.k, &a = c.a, &b = c.b;
  check_keys(rank_name, {"a", a}, {"b", b});
  check_same_device(rank_name, {{"a", &a}, {"k", &k}});
  TORCH_CHECK_TYPE(at::isIntegralType(k.scalar_type(), /*includeBool=*/false), rank_name,
                   ": k must be an integer, got ", k.scalar_type());
  const auto rows = a.sym_sizes().slice(0, size_t(a.dim() - 1)).vec();
  if (rows.empty()) return {{k.sym_numel()}, k.sym_sizes().vec()};
  const bool several = k.dim() == a.dim();
  auto expanded = rows;
  const auto given = k.sym_sizes();
  bool fit = k.dim() <= a.dim();
  for (size_t d = 1; fit && d + several <= given.size(); ++d) {
    const SymInt& size = given[given.size() - several - d];
    fit = TORCH_GUARD_OR_FALSE(size.sym_eq(1)) || TORCH_GUARD_OR_TRUE(size.sym_eq(rows[rows.size() - d]));
  }
  TORCH_CHECK(fit, rank_name, ": k of shape ", given, " does not fit to a of shape ", a.sym_sizes());
  if (several) expanded.push_back(given.back());
  return {expanded, expanded};
}

Tensor CoRank::kernel() const {
  const Queries queries = check(*this);
  Tensor out = empty_result(queries.result, k.options().dtype(at::kLong));
  if (is_done(out, co_rank_ladder::ladder, rank_name, algorithm)) return out;
  const Tensor x = canonical(a), y = canonical(b), wide = k.to(at::kLong);
  const Tensor ranks = (a.dim() == 1 ? wide : wide.expand_symint(queries.expanded)).contiguous();
  co_rank_ladder::Args args{};
  args.step = co_rank_ladder::Step::co_rank;
  args.in = sequences(rank_name, x, y, descending);
  args.k = ranks.const_data_ptr<int64_t>();
  args.ranks = out.mutable_data_ptr<int64_t>();
  args.queries = out.numel() / args.in.rows;
  for (int64_t q = 0; k.is_cpu() && q < out.numel(); ++q) {
    TORCH_CHECK_INDEX(0 <= args.k[q] && args.k[q] <= args.in.m + args.in.n, rank_name, ": k", index(ranks, q), " is ",
                      args.k[q], ", expected 0 to ", args.in.m + args.in.n);
  }
  run(co_rank_ladder::ladder, co_rank_ladder::choose, rank_name, algorithm, x, args);
  return out;
}

// ---- derivatives

// Merges x, moved with a, and y, moved with b; either may be undefined, which stands for zeros.
Tensor merged(const Tensor& a, Tensor x, const Tensor& b, Tensor y, bool descending, Str algorithm) {
  if (!x.defined()) x = at::zeros_symint(a.sym_sizes(), y.options());
  if (!y.defined()) y = at::zeros_symint(b.sym_sizes(), x.options());
  return std::get<1>(call(MergePairs{a, x, b, y, descending, false, algorithm}));
}

Tensors Merge::vjp(const Backward& back) const {
  const auto [grad_a, grad_b] = call(MergeBackward{back.grad(), a, b, descending, "auto"});
  return {grad_a, grad_b};
}

Tensors Merge::jvp(const Forward& f) const { return {merged(a, f.tangent(0), b, f.tangent(1), descending, algorithm)}; }

Tensors MergePairs::vjp(const Backward& b) const {
  Tensors result(4);
  for (size_t i = 0; i < 2; ++i) {  // of the keys, of the values
    if (!b.grad(i).defined() || !(b.wants(i) || b.wants(i + 2))) continue;
    std::tie(result[i], result[i + 2]) = call(MergeBackward{b.grad(i), keys_a, keys_b, descending, "auto"});
  }
  return result;
}

Tensors MergePairs::jvp(const Forward& f) const {
  Tensors result(2);
  for (size_t i = 0; i < 2; ++i) {
    const Tensor &of_a = f.tangent(i), &of_b = f.tangent(i + 2);
    if (of_a.defined() || of_b.defined()) result[i] = merged(keys_a, of_a, keys_b, of_b, descending, algorithm);
  }
  return result;
}

Tensors MergeBackward::vjp(const Backward& back) const {
  return {merged(a, back.grad(0), b, back.grad(1), descending, "auto")};
}

Tensors MergeBackward::jvp(const Forward& f) const {
  if (!f.tangent().defined()) return {};  // only the keys have one
  const auto [of_a, of_b] = call(MergeBackward{f.tangent(), a, b, descending, algorithm});
  return {of_a, of_b};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<Merge, MergePairs, MergeBackward, CoRank>(m); }

}  // namespace
}  // namespace tp
