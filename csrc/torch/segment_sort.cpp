// torch_patterns::segment_sort and segment_sort_pairs: checks, kernels, Meta, derivatives. A sort of segments is one
// permutation of all keys, so its derivatives are as in sort.cpp.
#include <ATen/ATen.h>

#include "torch/index.h"
#include "torch/operator.h"
#include "torch/permutation.h"

namespace tp {
namespace {

using Two = std::tuple<Tensor, Tensor>;

constexpr const char *keys_name = "segment_sort", *pairs_name = "segment_sort_pairs";
Pattern pattern(keys_name, segment_sort::ladder);

struct SegmentSort {
  static constexpr auto schema =
      "segment_sort(Tensor keys, Tensor offsets, bool descending=False, int begin_bit=0, int? end_bit=None, bool "
      "validate=False, str algorithm=\"auto\") -> Tensor";
  Tensor keys, offsets;
  bool descending;
  int64_t begin_bit;
  std::optional<int64_t> end_bit;
  bool validate;
  Str algorithm;

  Tensor kernel() const;
  Tensor meta() const;
  Tensor record(Tensor& order) const;
  Tensors vjp(const Backward& b) const { return {put(b.grad(), b.recorded(), 0)}; }
  Tensors jvp(const Forward& f) const { return {take(f.tangent(), f.recorded(), 0)}; }
  bool keeps(size_t) const { return false; }
};

struct SegmentSortPairs {
  static constexpr auto schema =
      "segment_sort_pairs(Tensor keys, Tensor values, Tensor offsets, bool descending=False, int begin_bit=0, int? "
      "end_bit=None, bool validate=False, str algorithm=\"auto\") -> (Tensor keys, Tensor values)";
  Tensor keys, values, offsets;
  bool descending;
  int64_t begin_bit;
  std::optional<int64_t> end_bit;
  bool validate;
  Str algorithm;

  Two kernel() const;
  Two meta() const;
  Two record(Tensor& order) const;
  Tensors vjp(const Backward& b) const { return {put(b.grad(0), b.recorded(), 0), put(b.grad(1), b.recorded(), 0)}; }
  Tensors jvp(const Forward& f) const {
    return {take(f.tangent(0), f.recorded(), 0), take(f.tangent(1), f.recorded(), 0)};
  }
  bool keeps(size_t) const { return false; }
  bool depends(size_t output, size_t input) const { return output == input; }
};

// Everything except the values of the offsets.
template <class Op>
sort::Args check(const char* name, const Op& op) {
  TORCH_CHECK_VALUE(op.keys.dim() == 1, name, ": keys must have one dimension, got shape ", op.keys.sym_sizes());
  check_offsets(name, {"offsets", op.offsets}, {"keys", op.keys});
  if constexpr (std::is_same_v<Op, SegmentSortPairs>) check_pairs(name, op.keys, op.values);
  return sort_args(name, op.keys, op.descending, op.begin_bit, op.end_bit);
}

template <class Op>
void run_segments(const char* name, const Op& op, sort::Args& args, const Tensor& keys) {
  const Tensor offsets = op.offsets.contiguous();
  check_offset_values(name, {"offsets", offsets}, keys.size(0), op.validate);
  args.n = keys.size(0);
  args.rows = offsets.size(0) - 1;
  args.offsets = offsets.const_data_ptr();
  args.long_offsets = offsets.scalar_type() == at::kLong;
  if (args.n == 0) return check_algorithm(segment_sort::ladder, name, op.algorithm);
  run(segment_sort::ladder, segment_sort::choose, name, op.algorithm, keys, args);
}

// The sorted keys, and the index of each in the input, counted from the first key.
template <class Op>
Tensor sort_places(const char* name, const Op& op, Tensor& order) {
  check(name, op);
  const Tensor places = at::arange(op.keys.sym_size(0), op.keys.options().dtype(at::kLong));
  Tensor sorted;
  std::tie(sorted, order) = call(SegmentSortPairs{op.keys, places, op.offsets, op.descending, op.begin_bit, op.end_bit,
                                                  op.validate, op.algorithm});
  return sorted;
}

Tensor SegmentSort::kernel() const {
  auto args = check(keys_name, *this);
  const Tensor k = raw_keys(keys);
  Tensor sorted = empty_result(k.sizes(), k.options());
  give_keys(args, k, sorted);
  run_segments(keys_name, *this, args, k);
  return sorted;
}

Tensor SegmentSort::meta() const {
  check(keys_name, *this);
  check_algorithm(segment_sort::ladder, keys_name, algorithm);
  return at::empty_symint(keys.sym_sizes(), keys.options());
}

Tensor SegmentSort::record(Tensor& order) const { return sort_places(keys_name, *this, order); }

Two SegmentSortPairs::kernel() const {
  auto args = check(pairs_name, *this);
  const Tensor k = raw_keys(keys), v = raw_keys(values);
  Tensor sorted = empty_result(k.sizes(), k.options()), moved = empty_result(v.sizes(), v.options());
  give_keys(args, k, sorted);
  give_values(args, v, moved);
  run_segments(pairs_name, *this, args, k);
  return {sorted, moved};
}

Two SegmentSortPairs::meta() const {
  check(pairs_name, *this);
  check_algorithm(segment_sort::ladder, pairs_name, algorithm);
  return {at::empty_symint(keys.sym_sizes(), keys.options()), at::empty_symint(values.sym_sizes(), values.options())};
}

Two SegmentSortPairs::record(Tensor& order) const {
  const Tensor sorted = sort_places(pairs_name, *this, order);
  return {sorted, take(values, order, 0)};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<SegmentSort, SegmentSortPairs>(m); }

}  // namespace
}  // namespace tp
