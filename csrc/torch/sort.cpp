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

at::ScalarType index_type(const char* name, const Tensor& x, int64_t dim, OptionalDtype given) {
  const at::ScalarType dtype = given.value_or(at::kLong);
  TORCH_CHECK_TYPE(dtype == at::kLong || dtype == at::kInt, name, ": index_dtype must be int32 or int64, got ", dtype);
  if (dtype == at::kLong || x.dim() == 0) return dtype;
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  TORCH_CHECK_VALUE(TORCH_GUARD_OR_TRUE(x.sym_size(dim).sym_le(most)), name, ": index_dtype int32 does not hold the ",
                    x.sym_size(dim), " positions of dim ", dim);
  return dtype;
}

// to_rows returns a contiguous tensor whose last dimension is `dim` of x; from_rows is its inverse.
Tensor to_rows(const Tensor& x, int64_t dim) { return raw_keys(dim + 1 >= x.dim() ? x : x.movedim(dim, -1)); }
Tensor from_rows(const Tensor& x, int64_t dim) {
  return dim + 1 >= x.dim() ? x : x.movedim(-1, dim).clone(at::MemoryFormat::Contiguous);
}

// Runs the rung on rows of keys. args says which payload moves with them: values, original indices, or none.
void run_rows(const char* name, sort::Args& args, const Tensor& keys, Str algorithm) {
  args.n = keys.dim() ? keys.size(-1) : 1;
  if (keys.numel() == 0) return check_algorithm(sort::ladder, name, algorithm);
  args.rows = keys.numel() / args.n;
  run(sort::ladder, sort::choose, name, algorithm, keys, args);
}

}  // namespace

// ---- sort

Two Sort::kernel() const {
  auto args = sort_args(sort_name, x, descending, 0, {});
  const int64_t along = wrap_dim(sort_name, dim, x.dim());
  const auto type = index_type(sort_name, x, along, index_dtype);
  const Tensor keys = to_rows(x, along);
  Tensor sorted = empty_result(keys.sizes(), keys.options());
  Tensor indices = empty_result(keys.sizes(), keys.options().dtype(type));
  give_keys(args, keys, sorted);
  args.values_out = indices.mutable_data_ptr();
  args.value_bytes = int(indices.element_size());
  run_rows(sort_name, args, keys, algorithm);
  return {from_rows(sorted, along), from_rows(indices, along)};
}

Two Sort::meta() const {
  sort_args(sort_name, x, false, 0, {});
  const auto type = index_type(sort_name, x, wrap_dim(sort_name, dim, x.dim()), index_dtype);
  check_algorithm(sort::ladder, sort_name, algorithm);
  return {at::empty_symint(x.sym_sizes(), x.options()), at::empty_symint(x.sym_sizes(), x.options().dtype(type))};
}

Tensors Sort::vjp(const Backward& b) const { return {put(b.grad(), b.output(1), dim)}; }

Tensors Sort::jvp(const Forward& f) const { return {take(f.tangent(), f.output(1), dim)}; }

// ---- sort_keys

Tensor SortKeys::kernel() const {
  auto args = sort_args(keys_name, x, descending, begin_bit, end_bit);
  const int64_t along = wrap_dim(keys_name, dim, x.dim());
  const Tensor keys = to_rows(x, along);
  Tensor sorted = empty_result(keys.sizes(), keys.options());
  give_keys(args, keys, sorted);
  run_rows(keys_name, args, keys, algorithm);
  return from_rows(sorted, along);
}

Tensor SortKeys::meta() const {
  sort_args(keys_name, x, false, begin_bit, end_bit);
  wrap_dim(keys_name, dim, x.dim());
  check_algorithm(sort::ladder, keys_name, algorithm);
  return at::empty_symint(x.sym_sizes(), x.options());
}

Tensor SortKeys::record(Tensor& order) const {
  sort_args(keys_name, x, false, begin_bit, end_bit);
  wrap_dim(keys_name, dim, x.dim());
  order = call(ArgSort{x, dim, descending, begin_bit, end_bit, at::kLong, algorithm});
  return take(x, order, dim);
}

Tensors SortKeys::vjp(const Backward& b) const { return {put(b.grad(), b.recorded(), dim)}; }

Tensors SortKeys::jvp(const Forward& f) const { return {take(f.tangent(), f.recorded(), dim)}; }

// ---- sort_pairs

namespace {

int64_t check(const SortPairs& s) {
  sort_args(pairs_name, s.keys, false, s.begin_bit, s.end_bit);
  const int64_t along = wrap_dim(pairs_name, s.dim, s.keys.dim());
  check_pairs(pairs_name, s.keys, s.values);
  return along;
}

}  // namespace

Two SortPairs::kernel() const {
  const int64_t along = check(*this);
  auto args = sort_args(pairs_name, keys, descending, begin_bit, end_bit);
  const Tensor k = to_rows(keys, along), v = to_rows(values, along);
  Tensor sorted = empty_result(k.sizes(), k.options()), moved = empty_result(v.sizes(), v.options());
  give_keys(args, k, sorted);
  give_values(args, v, moved);
  run_rows(pairs_name, args, k, algorithm);
  return {from_rows(sorted, along), from_rows(moved, along)};
}

Two SortPairs::meta() const {
  check(*this);
  check_algorithm(sort::ladder, pairs_name, algorithm);
  return {at::empty_symint(keys.sym_sizes(), keys.options()), at::empty_symint(values.sym_sizes(), values.options())};
}

Two SortPairs::record(Tensor& order) const {
  check(*this);
  order = call(ArgSort{keys, dim, descending, begin_bit, end_bit, at::kLong, algorithm});
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
  auto args = sort_args(arg_name, x, descending, begin_bit, end_bit);
  const int64_t along = wrap_dim(arg_name, dim, x.dim());
  const auto type = index_type(arg_name, x, along, index_dtype);
  const Tensor keys = to_rows(x, along);
  Tensor indices = empty_result(keys.sizes(), keys.options().dtype(type));
  args.keys = keys.const_data_ptr();
  args.values_out = indices.mutable_data_ptr();
  args.value_bytes = int(indices.element_size());
  run_rows(arg_name, args, keys, algorithm);
  return from_rows(indices, along);
}

Tensor ArgSort::meta() const {
  sort_args(arg_name, x, false, begin_bit, end_bit);
  const auto type = index_type(arg_name, x, wrap_dim(arg_name, dim, x.dim()), index_dtype);
  check_algorithm(sort::ladder, arg_name, algorithm);
  return at::empty_symint(x.sym_sizes(), x.options().dtype(type));
}

namespace {

// Checks the keys. Returns the dimension, counted from the front, and the dtype of the indices.
std::pair<int64_t, at::ScalarType> check(const LexSort& s) {
  TORCH_CHECK_VALUE(!s.keys.empty(), lex_name, ": keys must hold one tensor at least");
  const Tensor& first = s.keys[0];
  for (const Tensor& key : s.keys) {
    key_type(lex_name, key);
    check_same_device(lex_name, {{"keys[0]", &first}, {"another key", &key}});
    TORCH_SYM_CHECK(sym_equals(key.sym_sizes(), first.sym_sizes()), lex_name, ": keys[0] has shape ", first.sym_sizes(),
                    ", another key ", key.sym_sizes());
  }
  const int64_t along = wrap_dim(lex_name, s.dim, first.dim());
  return {along, index_type(lex_name, first, along, s.index_dtype)};
}

}  // namespace

// Sorts by one key after another, the primary key last. Sorts are stable, so ties keep the order of the earlier keys.
Tensor LexSort::kernel() const {
  const auto [along, type] = check(*this);
  const auto order_of = [&, along = along](const Tensor& key) {
    return ArgSort{key, along, descending, 0, {}, at::kLong, algorithm}.kernel();
  };
  Tensor order = order_of(keys[0]);
  for (size_t k = 1; k < keys.size(); ++k) {
    order = take(order, order_of(take(keys[k], order, along)), along);
  }
  return order.to(type);
}

Tensor LexSort::meta() const {
  const auto type = check(*this).second;
  check_algorithm(sort::ladder, lex_name, algorithm);
  return at::empty_symint(keys[0].sym_sizes(), keys[0].options().dtype(type));
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<Sort, SortKeys, SortPairs, ArgSort, LexSort>(m); }

}  // namespace tp
