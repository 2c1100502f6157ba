// torch_patterns::segment_sort, segment_sort_pairs and segment_topk: checks, kernels, derivatives.
//
// A sort of segments is one permutation of all keys, so its derivatives are as in sort.cpp. It puts the k greatest or
// least values of each segment first; a few of them are selected without a sort on the CPU. In segment_topk, the row of
// a segment with fewer than k values is filled up with the identity of the maximum or minimum and the index -1;
// gradients go to the rows that the indices name.
#include <ATen/ATen.h>

#include <limits>

#include "sort/top.h"
#include "torch/index.h"
#include "torch/permutation.h"
#include "torch/segments.h"

namespace tp {
namespace {

using Two = std::tuple<Tensor, Tensor>;

constexpr const char *keys_name = "segment_sort", *pairs_name = "segment_sort_pairs", *topk_name = "segment_topk";
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
  Two record(Tensor& order) const;
  Tensors vjp(const Backward& b) const { return {put(b.grad(0), b.recorded(), 0), put(b.grad(1), b.recorded(), 0)}; }
  Tensors jvp(const Forward& f) const {
    return {take(f.tangent(0), f.recorded(), 0), take(f.tangent(1), f.recorded(), 0)};
  }
  bool keeps(size_t) const { return false; }
  bool depends(size_t output, size_t input) const { return output == input; }
};

struct SegmentTopK {
  static constexpr auto schema =
      "segment_topk(Tensor values, Tensor offsets, SymInt k, bool largest=True, bool validate=False, str "
      "algorithm=\"auto\") -> (Tensor values, Tensor indices)";
  Tensor values, offsets;
  SymInt k;
  bool largest, validate;
  Str algorithm;

  TP_DIFFERENTIABLE(Two);
  bool keeps(size_t) const { return false; }
  bool keeps_output(size_t output) const { return output == 1; }
};

// Everything except the values of the offsets.
template <class Op>
sort::Args check(const char* name, const Op& op) {
  check_vector(name, {"keys", op.keys});
  check_offsets(name, {"offsets", op.offsets}, {"keys", op.keys});
  if constexpr (std::is_same_v<Op, SegmentSortPairs>) check_pairs(name, {"keys", op.keys}, {"values", op.values});
  return sort_args(name, op.keys, op.descending, op.begin_bit, op.end_bit);
}

// The sorted keys, and the values that move with them, if they are defined.
template <class Op>
Two sort_segments(const char* name, const Op& op, const Tensor& values) {
  auto args = check(name, op);
  check_offset_values(name, {"offsets", op.offsets}, op.keys.sym_size(0), op.validate);
  Tensor sorted = empty_result(op.keys.sym_sizes(), op.keys.options());
  Tensor moved = values.defined() ? empty_result(values.sym_sizes(), values.options()) : Tensor();
  if (is_done(sorted, segment_sort::ladder, name, op.algorithm)) return {sorted, moved};
  const Tensor keys = canonical(op.keys), moving = values.defined() ? canonical(values) : Tensor();
  const Tensor offsets = op.offsets.contiguous();
  args.keys = keys.const_data_ptr();
  args.keys_out = sorted.mutable_data_ptr();
  if (moved.defined()) give_values(args, moving, moved);
  args.n = keys.size(0);
  args.rows = offsets.size(0) - 1;
  args.offsets = offsets.const_data_ptr();
  args.long_offsets = offsets.scalar_type() == at::kLong;
  run(segment_sort::ladder, segment_sort::choose, name, op.algorithm, keys, args);
  return {sorted, moved};
}

// The sorted keys, and the index of each in the input, counted from the first key.
template <class Op>
Tensor sort_indices(const char* name, const Op& op, Tensor& order) {
  check(name, op);
  const Tensor indices = at::arange(op.keys.sym_size(0), op.keys.options().dtype(at::kLong));
  Tensor sorted;
  std::tie(sorted, order) = call(SegmentSortPairs{op.keys, indices, op.offsets, op.descending, op.begin_bit, op.end_bit,
                                                  op.validate, op.algorithm});
  return sorted;
}

Tensor SegmentSort::kernel() const { return std::get<0>(sort_segments(keys_name, *this, {})); }
Tensor SegmentSort::record(Tensor& order) const { return sort_indices(keys_name, *this, order); }

Two SegmentSortPairs::kernel() const { return sort_segments(pairs_name, *this, values); }
Two SegmentSortPairs::record(Tensor& order) const {
  const Tensor sorted = sort_indices(pairs_name, *this, order);
  return {sorted, take(values, order, 0)};
}

// ---- segment_topk

// The identity of the maximum or minimum.
at::Scalar least_of(at::ScalarType dtype, bool least) {
  if (at::isFloatingType(dtype)) {
    return least ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  }
  const auto extreme = [&](auto zero) {
    using T = decltype(zero);
    return at::Scalar(int64_t(least ? std::numeric_limits<T>::lowest() : std::numeric_limits<T>::max()));
  };
  switch (dtype) {
    case at::kBool:
      return !least;
    case at::kByte:
      return extreme(uint8_t());
    case at::kChar:
      return extreme(int8_t());
    case at::kShort:
      return extreme(int16_t());
    case at::kInt:
      return extreme(int32_t());
    default:
      return extreme(int64_t());
  }
}

Two select(const SegmentTopK& t, int64_t k) {
  const Tensor in = canonical(t.values), offsets = t.offsets.contiguous();
  const int64_t segments = offsets.size(0) - 1;
  const Tensor values = empty_result({segments, k}, in.options());
  const Tensor rows = empty_result({segments, k}, in.options().dtype(at::kLong));
  sort::Top top{in.const_data_ptr(),
                key_type(topk_name, in),
                t.largest,
                offsets.const_data_ptr(),
                offsets.scalar_type() == at::kLong,
                in.size(0),
                segments,
                k,
                values.mutable_data_ptr(),
                rows.mutable_data_ptr<int64_t>(),
                0};
  const Tensor absent = at::full({}, least_of(in.scalar_type(), t.largest), in.options());
  memcpy(&top.absent, absent.const_data_ptr(), size_t(in.element_size()));
  with_context(in, [&](TorchContext& context) { sort::select_top(top, context); });
  return {values, rows};
}

Two SegmentTopK::kernel() const {
  dtype_of_tensor(topk_name, values);
  check_vector(topk_name, {"values", values});
  check_offsets(topk_name, {"offsets", offsets}, {"values", values});
  TORCH_CHECK_VALUE(TORCH_GUARD_OR_TRUE(k.sym_ge(0)), topk_name, ": k must not be negative, got ", k);
  check_algorithm(segment_sort::ladder, topk_name, algorithm);
  const auto longs = values.options().dtype(at::kLong);
  if (values.is_meta()) {
    const Sizes shape = {offsets.sym_size(0) - 1, k};
    return {empty_result(shape, values.options()), empty_result(shape, longs)};
  }
  const int64_t n = values.size(0), segments = offsets.size(0) - 1, most = k.expect_int();
  check_offset_values(topk_name, {"offsets", offsets}, n, validate);
  if (values.is_cpu() && algorithm == "auto" && 0 < most && most <= sort::most_selected) return select(*this, most);
  const auto [sorted, rows] =
      call(SegmentSortPairs{values, at::arange(n, longs), offsets, largest, 0, {}, false, algorithm});
  const Tensor o = at::clamp(offsets.to(at::kLong), 0, n);
  const Tensor positions = o.narrow(0, 0, segments).unsqueeze(1) + at::arange(most, longs);
  const Tensor missing = positions.ge(o.narrow(0, 1, segments).unsqueeze(1));
  const Tensor inside = at::where(missing, n, positions).view({-1});  // missing values read past the last element
  const auto pick = [&](const Tensor& line, const at::Scalar& absent) {
    return at::cat({line, at::full({1}, absent, line.options())}).index_select(0, inside).view({segments, most});
  };
  return {pick(sorted, least_of(values.scalar_type(), largest)), pick(rows, -1)};
}

// The rows at `indices`; missing ones read an additional row at the end.
Tensor rows_or(const Tensor& indices, const SymInt& n) {
  return indices.masked_fill(indices.lt(0), c10::Scalar(n)).reshape_symint({indices.sym_numel()});
}

Tensors SegmentTopK::vjp(const Backward& b) const {
  const SymInt n = b.sizes(0)[0];
  const Tensor& g = b.grad();
  const Tensor grads = at::zeros_symint({n + 1}, g.options());
  return {grads.scatter(0, rows_or(b.output(1), n), g.reshape_symint({g.sym_numel()})).narrow_symint(0, 0, n)};
}

Tensors SegmentTopK::jvp(const Forward& f) const {
  const Tensor& t = f.tangent();
  const Tensor& indices = f.output(1);
  return {with_zero_row(t).gather(0, rows_or(indices, t.sym_size(0))).view_symint(indices.sym_sizes()), Tensor()};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<SegmentSort, SegmentSortPairs, SegmentTopK>(m); }

}  // namespace
}  // namespace tp
