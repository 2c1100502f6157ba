// torch_patterns::compact, compact_padded, compact_backward and partition.
#pragma once
#include <array>

#include "torch/operator.h"

namespace tp {

struct Compact {
  static constexpr auto schema = "compact(Tensor x, Tensor mask, str algorithm=\"auto\") -> Tensor";
  static constexpr std::array tags = {at::Tag::dynamic_output_shape};
  Tensor x, mask;
  Str algorithm;

  Tensor kernel() const;
  Tensors vjp(const Backward& b) const;
  Tensors jvp(const Forward& f) const;
  bool keeps(size_t input) const { return input == 1; }
};

struct CompactPadded {
  static constexpr auto schema =
      "compact_padded(Tensor x, Tensor mask, Scalar fill=0, str algorithm=\"auto\") -> (Tensor, Tensor)";
  Tensor x, mask;
  at::Scalar fill;
  Str algorithm;

  TP_DIFFERENTIABLE(std::tuple<Tensor, Tensor>);
  bool keeps(size_t input) const { return input == 1; }
};

// Puts the rows of `grad` where the mask is true, one after another, and zeros elsewhere.
struct CompactBackward {
  static constexpr auto schema = "compact_backward(Tensor grad, Tensor mask, str algorithm=\"auto\") -> Tensor";
  Tensor grad, mask;
  Str algorithm;

  TP_LINEAR(Tensor)
  bool keeps(size_t input) const { return input == 1; }
};

struct Partition {
  static constexpr auto schema =
      "partition(Tensor x, Tensor mask, str algorithm=\"auto\") -> (Tensor values, Tensor count)";
  Tensor x, mask;
  Str algorithm;

  TP_DIFFERENTIABLE(std::tuple<Tensor, Tensor>);
  bool keeps(size_t input) const { return input == 1; }
};

}  // namespace tp
