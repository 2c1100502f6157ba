// torch_patterns::segment_reduce, segment_expand, segment_softmax, segment_scan and segment_recurrence.
#pragma once
#include "torch/operator.h"

namespace tp {

// The dtype of a reduction of rows, for any grouping; makes every check that needs only the values and the operator.
at::ScalarType reduced_dtype(const char* pattern, const Tensor& values, Str op);

struct SegmentReduce {
  static constexpr auto schema =
      "segment_reduce(Tensor values, Tensor offsets, str op=\"sum\", bool validate=False, str algorithm=\"auto\") -> "
      "Tensor";
  Tensor values, offsets;
  Str op;
  bool validate;
  Str algorithm;

  TP_DIFFERENTIABLE(Tensor);
  bool keeps(size_t input) const { return input == 1 || (op != "sum" && op != "mean"); }
  Autocast autocast() const;
};

struct SegmentExpand {
  static constexpr auto schema =
      "segment_expand(Tensor x, Tensor offsets, SymInt n, bool validate=False, str algorithm=\"auto\") -> Tensor";
  Tensor x, offsets;
  SymInt n;
  bool validate;
  Str algorithm;

  TP_LINEAR(Tensor)
  bool keeps(size_t input) const { return input == 1; }
};

// The softmax of each segment, or its logarithm.
template <bool logarithm>
struct SegmentSoftmaxOf {
  static constexpr auto schema =
      logarithm
          ? "segment_log_softmax(Tensor values, Tensor offsets, bool validate=False, str algorithm=\"auto\") -> Tensor"
          : "segment_softmax(Tensor values, Tensor offsets, bool validate=False, str algorithm=\"auto\") -> Tensor";
  Tensor values, offsets;
  bool validate;
  Str algorithm;

  TP_DIFFERENTIABLE(Tensor);
  bool keeps(size_t input) const { return input == 1; }
  bool keeps_output(size_t) const { return true; }
  Autocast autocast() const { return Autocast::float32; }
};
using SegmentSoftmax = SegmentSoftmaxOf<false>;
using SegmentLogSoftmax = SegmentSoftmaxOf<true>;

struct SegmentScan {
  static constexpr auto schema =
      "segment_scan(Tensor values, Tensor offsets, str op=\"sum\", bool exclusive=False, bool reverse=False, bool "
      "validate=False, str algorithm=\"auto\") -> Tensor";
  Tensor values, offsets;
  Str op;
  bool exclusive, reverse, validate;
  Str algorithm;

  TP_DIFFERENTIABLE(Tensor);
  bool keeps(size_t input) const { return input == 1 || op != "sum"; }
  bool keeps_output(size_t) const { return op == "max" || op == "min"; }
  Autocast autocast() const { return Autocast::float32; }
};

// h[k] = a[k] h[k-1] + b[k] within each segment. It restarts wherever a[k] is 0, and at the head of each segment,
// unless `initial`, one row per segment, gives the state before it.
struct SegmentRecurrence {
  static constexpr auto schema =
      "segment_recurrence(Tensor a, Tensor b, Tensor offsets, bool reverse=False, Tensor? initial=None, str "
      "algorithm=\"auto\") -> Tensor";
  Tensor a, b, offsets;
  bool reverse;
  OptionalTensor initial;
  Str algorithm;

  TP_DIFFERENTIABLE(Tensor);
  bool keeps(size_t input) const { return input != 1; }
  bool keeps_output(size_t) const { return true; }
  Autocast autocast() const { return Autocast::float32; }
};

}  // namespace tp
