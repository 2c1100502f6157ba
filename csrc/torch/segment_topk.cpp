// torch_patterns::segment_topk: the k greatest or least values of each segment. A sort of the segments puts them first;
// a few of them are selected without one on the CPU.
//
// The row of a segment with fewer than k values is filled up with the identity of the maximum or minimum and the index
// -1. Gradients go to the rows that the indices name.
#include <ATen/ATen.h>

#include <limits>

#include "sort/top.h"
#include "torch/index.h"
#include "torch/keys.h"
#include "torch/permutation.h"
#include "torch/segments.h"

namespace tp {
namespace {

using Two = std::tuple<Tensor, Tensor>;

constexpr const char* op_name = "segment_topk";

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

void check(const SegmentTopK& t) {
  dtype_of_tensor(op_name, t.values);
  TORCH_CHECK_VALUE(t.values.dim() == 1, op_name, ": values must have one dimension, got shape ", t.values.sym_sizes());
  check_offsets(op_name, {"offsets", t.offsets}, {"values", t.values});
  TORCH_CHECK_VALUE(TORCH_GUARD_OR_TRUE(t.k.sym_ge(0)), op_name, ": k must not be negative, got ", t.k);
  check_algorithm(segment_sort::ladder, op_name, t.algorithm);
}

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
  const Tensor in = raw_keys(t.values), offsets = t.offsets.contiguous();
  const int64_t segments = offsets.size(0) - 1;
  const Tensor values = empty_result({segments, k}, in.options());
  const Tensor rows = empty_result({segments, k}, in.options().dtype(at::kLong));
  sort::Top top{in.const_data_ptr(),
                key_type(op_name, in),
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
  translate_errors([&] {
    TorchContext context(in);
    sort::select_top(top, context);
  });
  return {values, rows};
}

}  // namespace

Two SegmentTopK::kernel() const {
  check(*this);
  const int64_t n = values.size(0), segments = offsets.size(0) - 1, most = k.expect_int();
  check_offset_values(op_name, {"offsets", offsets}, n, validate);
  if (values.is_cpu() && algorithm == "auto" && 0 < most && most <= sort::most_selected) return select(*this, most);
  const auto longs = values.options().dtype(at::kLong);
  const auto sort =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("torch_patterns::segment_sort_pairs", "")
          .typed<Two(const Tensor&, const Tensor&, const Tensor&, bool, int64_t, std::optional<int64_t>, bool, Str)>();
  const auto [sorted, rows] =
      sort.call(values, at::arange(n, longs), offsets, largest, 0, std::nullopt, false, algorithm);
  const Tensor o = at::clamp(offsets.to(at::kLong), 0, n);
  const Tensor places = o.narrow(0, 0, segments).unsqueeze(1) + at::arange(most, longs);
  const Tensor missing = places.ge(o.narrow(0, 1, segments).unsqueeze(1));
  const Tensor inside = at::where(missing, n, places).view({-1});  // missing values read past the last element
  const auto pick = [&, segments = segments](const Tensor& line, const at::Scalar& absent) {
    return at::cat({line, at::full({1}, absent, line.options())}).index_select(0, inside).view({segments, most});
  };
  return {pick(sorted, least_of(values.scalar_type(), largest)), pick(rows, -1)};
}

Two SegmentTopK::meta() const {
  check(*this);
  const SymInt segments = offsets.sym_size(0) - 1;
  return {at::empty_symint({segments, k}, values.options()),
          at::empty_symint({segments, k}, values.options().dtype(at::kLong))};
}

namespace {

// The rows at `places`; missing ones read an additional row at the end.
Tensor rows_or(const Tensor& indices, const SymInt& n) {
  return indices.masked_fill(indices.lt(0), c10::Scalar(n)).reshape_symint({indices.sym_numel()});
}

}  // namespace

Tensors SegmentTopK::vjp(const Backward& b) const {
  const SymInt n = b.sizes(0)[0];
  const Tensor& g = b.grad();
  const Tensor grads = at::zeros_symint({n + 1}, g.options());
  return {grads.scatter(0, rows_or(b.output(1), n), g.reshape_symint({g.sym_numel()})).narrow_symint(0, 0, n)};
}

Tensors SegmentTopK::jvp(const Forward& f) const {
  const Tensor& t = f.tangent();
  const Tensor& indices = f.output(1);
  const Tensor line = at::cat({t, at::zeros_symint({1}, t.options())});
  return {line.gather(0, rows_or(indices, t.sym_size(0))).view_symint(indices.sym_sizes()), Tensor()};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<SegmentTopK>(m); }

}  // namespace tp
