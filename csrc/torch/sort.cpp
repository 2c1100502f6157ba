// torch_patterns::sort, sort_keys, sort_pairs, argsort and lexsort: schema, checks, Meta, Autograd.
//
// A sort is a permutation. What it does to values is `take` by indices, and the gradient of that is `put` by the same
// indices; each is the other's derivative, so every order exists, and none adds two numbers. Where keys-only sorts are
// asked for gradients, they become an argsort and a take.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "torch/permutation.h"

namespace tp {
namespace {

using Two = std::tuple<Tensor, Tensor>;
using End = std::optional<int64_t>;
using IndexType = std::optional<at::ScalarType>;  // int64 if not given

constexpr const char *sort_name = "sort", *keys_name = "sort_keys", *pairs_name = "sort_pairs", *arg_name = "argsort",
                     *lex_name = "lexsort";
Pattern pattern("sort", sort::ladder);

Two call_sort(const Tensor& x, int64_t dim, bool descending, IndexType index_dtype, Str algorithm) {
  static const auto handle = op<Two(const Tensor&, int64_t, bool, IndexType, Str)>(sort_name);
  return handle.call(x, dim, descending, index_dtype, algorithm);
}

Tensor call_keys(const Tensor& x, int64_t dim, bool descending, int64_t begin_bit, End end_bit, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, int64_t, bool, int64_t, End, Str)>(keys_name);
  return handle.call(x, dim, descending, begin_bit, end_bit, algorithm);
}

Two call_pairs(const Tensor& keys, const Tensor& values, int64_t dim, bool descending, int64_t begin_bit, End end_bit,
               Str algorithm) {
  static const auto handle = op<Two(const Tensor&, const Tensor&, int64_t, bool, int64_t, End, Str)>(pairs_name);
  return handle.call(keys, values, dim, descending, begin_bit, end_bit, algorithm);
}

Tensor call_argsort(const Tensor& x, int64_t dim, bool descending, int64_t begin_bit, End end_bit,
                    IndexType index_dtype, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, int64_t, bool, int64_t, End, IndexType, Str)>(arg_name);
  return handle.call(x, dim, descending, begin_bit, end_bit, index_dtype, algorithm);
}

// ---- kernels: CPU and CUDA alike

at::ScalarType index_type(const char* name, const Tensor& x, int64_t dim, IndexType given) {
  const at::ScalarType dtype = given.value_or(at::kLong);
  TORCH_CHECK_TYPE(dtype == at::kLong || dtype == at::kInt, name, ": index_dtype must be int32 or int64, got ", dtype);
  TORCH_CHECK_VALUE(dtype == at::kLong || x.dim() == 0 || x.sym_size(dim) <= std::numeric_limits<int32_t>::max(), name,
                    ": index_dtype int32 does not hold the ", x.sym_sizes()[size_t(dim)], " positions of dim ", dim);
  return dtype;
}

// `x` with `dim` last, contiguous; and the way back.
Tensor to_rows(const Tensor& x, int64_t dim) { return raw_keys(x.dim() ? x.movedim(dim, -1) : x); }
Tensor from_rows(const Tensor& x, int64_t dim) {
  return dim + 1 >= x.dim() ? x : x.movedim(-1, dim).clone(at::MemoryFormat::Contiguous);
}

// Runs the rung on rows of keys, with rows of values or of positions, or neither.
void run_rows(const char* name, sort::Args& args, const Tensor& keys, Str algorithm) {
  args.n = keys.dim() ? keys.size(-1) : 1;
  if (keys.numel() == 0) return check_algorithm(sort::ladder, name, algorithm);
  args.rows = keys.numel() / args.n;
  run(sort::ladder, sort::choose, name, algorithm, keys, args);
}

Two sort_kernel(const Tensor& x, int64_t dim, bool descending, IndexType index_dtype, Str algorithm) {
  auto args = sort_args(sort_name, x, descending, 0, {});
  dim = wrap_dim(sort_name, dim, x.dim());
  const auto type = index_type(sort_name, x, dim, index_dtype);
  const Tensor keys = to_rows(x, dim);
  Tensor sorted = empty_result(keys.sizes(), keys.options());
  Tensor indices = empty_result(keys.sizes(), keys.options().dtype(type));
  give_keys(args, keys, sorted);
  args.values_out = indices.mutable_data_ptr();
  args.value_bytes = int(indices.element_size());
  run_rows(sort_name, args, keys, algorithm);
  return {from_rows(sorted, dim), from_rows(indices, dim)};
}

Tensor keys_kernel(const Tensor& x, int64_t dim, bool descending, int64_t begin_bit, End end_bit, Str algorithm) {
  auto args = sort_args(keys_name, x, descending, begin_bit, end_bit);
  dim = wrap_dim(keys_name, dim, x.dim());
  const Tensor keys = to_rows(x, dim);
  Tensor sorted = empty_result(keys.sizes(), keys.options());
  give_keys(args, keys, sorted);
  run_rows(keys_name, args, keys, algorithm);
  return from_rows(sorted, dim);
}

Two pairs_kernel(const Tensor& keys, const Tensor& values, int64_t dim, bool descending, int64_t begin_bit, End end_bit,
                 Str algorithm) {
  auto args = sort_args(pairs_name, keys, descending, begin_bit, end_bit);
  dim = wrap_dim(pairs_name, dim, keys.dim());
  check_pairs(pairs_name, keys, values);
  const Tensor k = to_rows(keys, dim), v = to_rows(values, dim);
  Tensor sorted = empty_result(k.sizes(), k.options()), moved = empty_result(v.sizes(), v.options());
  give_keys(args, k, sorted);
  give_values(args, v, moved);
  run_rows(pairs_name, args, k, algorithm);
  return {from_rows(sorted, dim), from_rows(moved, dim)};
}

Tensor argsort_kernel(const Tensor& x, int64_t dim, bool descending, int64_t begin_bit, End end_bit,
                      IndexType index_dtype, Str algorithm) {
  auto args = sort_args(arg_name, x, descending, begin_bit, end_bit);
  dim = wrap_dim(arg_name, dim, x.dim());
  const auto type = index_type(arg_name, x, dim, index_dtype);
  const Tensor keys = to_rows(x, dim);
  Tensor indices = empty_result(keys.sizes(), keys.options().dtype(type));
  args.keys = keys.const_data_ptr();
  args.values_out = indices.mutable_data_ptr();
  args.value_bytes = int(indices.element_size());
  run_rows(arg_name, args, keys, algorithm);
  return from_rows(indices, dim);
}

std::pair<int64_t, at::ScalarType> check_lexsort(at::TensorList keys, int64_t dim, IndexType index_dtype) {
  for (const Tensor& key : keys) {
    key_type(lex_name, key);
    check_same_device(lex_name, {{"keys[0]", &keys[0]}, {"another key", &key}});
    TORCH_CHECK(key.sym_sizes() == keys[0].sym_sizes(), lex_name, ": keys[0] has shape ", keys[0].sym_sizes(),
                ", another key ", key.sym_sizes());
  }
  dim = wrap_dim(lex_name, dim, keys[0].dim());
  return {dim, index_type(lex_name, keys[0], dim, index_dtype)};
}

// By one key after another, the primary one last: what an earlier one put in order stays so among equals of a later.
Tensor lexsort_kernel(at::TensorList keys, int64_t given, bool descending, IndexType index_dtype, Str algorithm) {
  const auto [dim, type] = check_lexsort(keys, given, index_dtype);
  Tensor order = argsort_kernel(keys[0], dim, descending, 0, {}, at::kLong, algorithm);
  for (const Tensor& key : keys.slice(1)) {
    const Tensor ranked = take_raw(key, order, dim);
    order = take_raw(order, argsort_kernel(ranked, dim, descending, 0, {}, at::kLong, algorithm), dim);
  }
  return order.to(type);
}

// ---- Meta

Two sort_meta(const Tensor& x, int64_t dim, bool, IndexType index_dtype, Str algorithm) {
  sort_args(sort_name, x, false, 0, {});
  const auto type = index_type(sort_name, x, wrap_dim(sort_name, dim, x.dim()), index_dtype);
  check_algorithm(sort::ladder, sort_name, algorithm);
  return {at::empty_symint(x.sym_sizes(), x.options()), at::empty_symint(x.sym_sizes(), x.options().dtype(type))};
}

Tensor keys_meta(const Tensor& x, int64_t dim, bool, int64_t begin_bit, End end_bit, Str algorithm) {
  sort_args(keys_name, x, false, begin_bit, end_bit);
  wrap_dim(keys_name, dim, x.dim());
  check_algorithm(sort::ladder, keys_name, algorithm);
  return at::empty_symint(x.sym_sizes(), x.options());
}

Two pairs_meta(const Tensor& keys, const Tensor& values, int64_t dim, bool, int64_t begin_bit, End end_bit,
               Str algorithm) {
  sort_args(pairs_name, keys, false, begin_bit, end_bit);
  wrap_dim(pairs_name, dim, keys.dim());
  check_pairs(pairs_name, keys, values);
  check_algorithm(sort::ladder, pairs_name, algorithm);
  return {at::empty_symint(keys.sym_sizes(), keys.options()), at::empty_symint(values.sym_sizes(), values.options())};
}

Tensor argsort_meta(const Tensor& x, int64_t dim, bool, int64_t begin_bit, End end_bit, IndexType index_dtype,
                    Str algorithm) {
  sort_args(arg_name, x, false, begin_bit, end_bit);
  const auto type = index_type(arg_name, x, wrap_dim(arg_name, dim, x.dim()), index_dtype);
  check_algorithm(sort::ladder, arg_name, algorithm);
  return at::empty_symint(x.sym_sizes(), x.options().dtype(type));
}

Tensor lexsort_meta(at::TensorList keys, int64_t dim, bool, IndexType index_dtype, Str algorithm) {
  const auto type = check_lexsort(keys, dim, index_dtype).second;
  check_algorithm(sort::ladder, lex_name, algorithm);
  return at::empty_symint(keys[0].sym_sizes(), keys[0].options().dtype(type));
}

// ---- Autograd

struct SortFunction : torch::autograd::Function<SortFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, int64_t dim, bool descending,
                               at::ScalarType index_dtype, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [values, indices] = call_sort(x, dim, descending, index_dtype, algorithm);
    ctx->mark_non_differentiable({indices});
    ctx->save_for_backward({indices});
    ctx->saved_data["dim"] = wrap_dim(sort_name, dim, x.dim());
    return {values, indices};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(5);
    if (grads[0].defined()) result[0] = put(grads[0], ctx->get_saved_variables()[0], ctx->saved_data.at("dim").toInt());
    return result;
  }
};

Two sort_autograd(const Tensor& x, int64_t dim, bool descending, IndexType index_dtype, Str algorithm) {
  if (needs_gradient(x)) {
    const auto out = SortFunction::apply(x, dim, descending, index_dtype.value_or(at::kLong), std::string(algorithm));
    return {out[0], out[1]};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return call_sort(x, dim, descending, index_dtype, algorithm);
}

Tensor keys_autograd(const Tensor& x, int64_t dim, bool descending, int64_t begin_bit, End end_bit, Str algorithm) {
  if (needs_gradient(x)) {
    const Tensor order = call_argsort(x.detach(), dim, descending, begin_bit, end_bit, at::kLong, algorithm);
    return take(x, order, wrap_dim(keys_name, dim, x.dim()));
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return call_keys(x, dim, descending, begin_bit, end_bit, algorithm);
}

Two pairs_autograd(const Tensor& keys, const Tensor& values, int64_t dim, bool descending, int64_t begin_bit,
                   End end_bit, Str algorithm) {
  if (needs_gradient(keys) || needs_gradient(values)) {
    check_pairs(pairs_name, keys, values);
    const Tensor order = call_argsort(keys.detach(), dim, descending, begin_bit, end_bit, at::kLong, algorithm);
    dim = wrap_dim(pairs_name, dim, keys.dim());
    return {take(keys, order, dim), take(values, order, dim)};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return call_pairs(keys, values, dim, descending, begin_bit, end_bit, algorithm);
}

Tensor argsort_autograd(const Tensor& x, int64_t dim, bool descending, int64_t begin_bit, End end_bit,
                        IndexType index_dtype, Str algorithm) {
  at::AutoDispatchBelowADInplaceOrView below;
  return call_argsort(x, dim, descending, begin_bit, end_bit, index_dtype, algorithm);
}

Tensor lexsort_autograd(at::TensorList keys, int64_t dim, bool descending, IndexType index_dtype, Str algorithm) {
  static const auto handle = op<Tensor(at::TensorList, int64_t, bool, IndexType, Str)>(lex_name);
  at::AutoDispatchBelowADInplaceOrView below;
  return handle.call(keys, dim, descending, index_dtype, algorithm);
}

// ---- registration

void register_kernels(torch::Library& m) {
  m.impl(sort_name, &sort_kernel);
  m.impl(keys_name, &keys_kernel);
  m.impl(pairs_name, &pairs_kernel);
  m.impl(arg_name, &argsort_kernel);
  m.impl(lex_name, &lexsort_kernel);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  const std::string bits = "bool descending=False, int begin_bit=0, int? end_bit=None, ";
  const std::string last = "str algorithm=\"auto\") -> ", index = "ScalarType? index_dtype=None, ";
  const auto define = [&](const std::string& schema) { m.def(schema.c_str(), {at::Tag::pt2_compliant_tag}); };
  define("sort(Tensor x, int dim=-1, bool descending=False, " + index + last + "(Tensor values, Tensor indices)");
  define("sort_keys(Tensor x, int dim=-1, " + bits + last + "Tensor");
  define("sort_pairs(Tensor keys, Tensor values, int dim=-1, " + bits + last + "(Tensor keys, Tensor values)");
  define("argsort(Tensor x, int dim=-1, " + bits + index + last + "Tensor");
  define("lexsort(Tensor[] keys, int dim=-1, bool descending=False, " + index + last + "Tensor");
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) {
  m.impl(sort_name, &sort_meta);
  m.impl(keys_name, &keys_meta);
  m.impl(pairs_name, &pairs_meta);
  m.impl(arg_name, &argsort_meta);
  m.impl(lex_name, &lexsort_meta);
}
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) {
  m.impl(sort_name, &sort_autograd);
  m.impl(keys_name, &keys_autograd);
  m.impl(pairs_name, &pairs_autograd);
  m.impl(arg_name, &argsort_autograd);
  m.impl(lex_name, &lexsort_autograd);
}

}  // namespace
}  // namespace tp
