// torch_patterns::segment_sort and segment_sort_pairs: schema, checks, Meta, Autograd. A sort of segments is a
// permutation of them all: gradients are as in sort.cpp.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "torch/index.h"
#include "torch/permutation.h"

namespace tp {
namespace {

using Two = std::tuple<Tensor, Tensor>;
using End = std::optional<int64_t>;

constexpr const char *keys_name = "segment_sort", *pairs_name = "segment_sort_pairs";
Pattern pattern(keys_name, segment_sort::ladder);

Tensor call_keys(const Tensor& keys, const Tensor& offsets, bool descending, int64_t begin_bit, End end_bit,
                 bool validate, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, bool, int64_t, End, bool, Str)>(keys_name);
  return handle.call(keys, offsets, descending, begin_bit, end_bit, validate, algorithm);
}

Two call_pairs(const Tensor& keys, const Tensor& values, const Tensor& offsets, bool descending, int64_t begin_bit,
               End end_bit, bool validate, Str algorithm) {
  static const auto handle =
      op<Two(const Tensor&, const Tensor&, const Tensor&, bool, int64_t, End, bool, Str)>(pairs_name);
  return handle.call(keys, values, offsets, descending, begin_bit, end_bit, validate, algorithm);
}

sort::Args segment_args(const char* op, const Tensor& keys, const Tensor& offsets, bool descending, int64_t begin_bit,
                        End end_bit) {
  TORCH_CHECK_VALUE(keys.dim() == 1, op, ": keys must have one dimension, got shape ", keys.sym_sizes());
  check_offsets(op, {"offsets", offsets}, {"keys", keys});
  return sort_args(op, keys, descending, begin_bit, end_bit);
}

// ---- kernels: CPU and CUDA alike

void run_segments(const char* name, sort::Args& args, const Tensor& keys, const Tensor& offsets, bool validate,
                  Str algorithm) {
  check_offset_values(name, {"offsets", offsets}, keys.size(0), validate);
  args.n = keys.size(0);
  args.rows = offsets.size(0) - 1;
  args.offsets = offsets.const_data_ptr();
  args.long_offsets = offsets.scalar_type() == at::kLong;
  if (args.n == 0) return check_algorithm(segment_sort::ladder, name, algorithm);
  run(segment_sort::ladder, segment_sort::choose, name, algorithm, keys, args);
}

Tensor keys_kernel(const Tensor& keys, const Tensor& offsets, bool descending, int64_t begin_bit, End end_bit,
                   bool validate, Str algorithm) {
  auto args = segment_args(keys_name, keys, offsets, descending, begin_bit, end_bit);
  const Tensor k = raw_keys(keys);
  Tensor sorted = empty_result(k.sizes(), k.options());
  give_keys(args, k, sorted);
  run_segments(keys_name, args, k, offsets.contiguous(), validate, algorithm);
  return sorted;
}

Two pairs_kernel(const Tensor& keys, const Tensor& values, const Tensor& offsets, bool descending, int64_t begin_bit,
                 End end_bit, bool validate, Str algorithm) {
  auto args = segment_args(pairs_name, keys, offsets, descending, begin_bit, end_bit);
  check_pairs(pairs_name, keys, values);
  const Tensor k = raw_keys(keys), v = raw_keys(values);
  Tensor sorted = empty_result(k.sizes(), k.options()), moved = empty_result(v.sizes(), v.options());
  give_keys(args, k, sorted);
  give_values(args, v, moved);
  run_segments(pairs_name, args, k, offsets.contiguous(), validate, algorithm);
  return {sorted, moved};
}

// ---- Meta

Tensor keys_meta(const Tensor& keys, const Tensor& offsets, bool, int64_t begin_bit, End end_bit, bool, Str algorithm) {
  segment_args(keys_name, keys, offsets, false, begin_bit, end_bit);
  check_algorithm(segment_sort::ladder, keys_name, algorithm);
  return at::empty_symint(keys.sym_sizes(), keys.options());
}

Two pairs_meta(const Tensor& keys, const Tensor& values, const Tensor& offsets, bool, int64_t begin_bit, End end_bit,
               bool, Str algorithm) {
  segment_args(pairs_name, keys, offsets, false, begin_bit, end_bit);
  check_pairs(pairs_name, keys, values);
  check_algorithm(segment_sort::ladder, pairs_name, algorithm);
  return {at::empty_symint(keys.sym_sizes(), keys.options()), at::empty_symint(values.sym_sizes(), values.options())};
}

// ---- Autograd

// Where each sorted key comes from, counted from the first key of all.
Tensor order_of(const char* name, const Tensor& keys, const Tensor& offsets, bool descending, int64_t begin_bit,
                End end_bit, bool validate, Str algorithm) {
  segment_args(name, keys, offsets, descending, begin_bit, end_bit);
  const Tensor places = at::arange(keys.sym_size(0), keys.options().dtype(at::kLong));
  return std::get<1>(call_pairs(keys.detach(), places, offsets, descending, begin_bit, end_bit, validate, algorithm));
}

Tensor keys_autograd(const Tensor& keys, const Tensor& offsets, bool descending, int64_t begin_bit, End end_bit,
                     bool validate, Str algorithm) {
  if (needs_gradient(keys))
    return take(keys, order_of(keys_name, keys, offsets, descending, begin_bit, end_bit, validate, algorithm), 0);
  at::AutoDispatchBelowADInplaceOrView below;
  return call_keys(keys, offsets, descending, begin_bit, end_bit, validate, algorithm);
}

Two pairs_autograd(const Tensor& keys, const Tensor& values, const Tensor& offsets, bool descending, int64_t begin_bit,
                   End end_bit, bool validate, Str algorithm) {
  if (needs_gradient(keys) || needs_gradient(values)) {
    check_pairs(pairs_name, keys, values);
    const Tensor order = order_of(pairs_name, keys, offsets, descending, begin_bit, end_bit, validate, algorithm);
    return {take(keys, order, 0), take(values, order, 0)};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return call_pairs(keys, values, offsets, descending, begin_bit, end_bit, validate, algorithm);
}

void register_kernels(torch::Library& m) {
  m.impl(keys_name, &keys_kernel);
  m.impl(pairs_name, &pairs_kernel);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  const std::string rest =
      "Tensor offsets, bool descending=False, int begin_bit=0, int? end_bit=None, bool validate=False, "
      "str algorithm=\"auto\") -> ";
  const auto define = [&](const std::string& schema) { m.def(schema.c_str(), {at::Tag::pt2_compliant_tag}); };
  define("segment_sort(Tensor keys, " + rest + "Tensor");
  define("segment_sort_pairs(Tensor keys, Tensor values, " + rest + "(Tensor keys, Tensor values)");
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) {
  m.impl(keys_name, &keys_meta);
  m.impl(pairs_name, &pairs_meta);
}
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) {
  m.impl(keys_name, &keys_autograd);
  m.impl(pairs_name, &pairs_autograd);
}

}  // namespace
}  // namespace tp
