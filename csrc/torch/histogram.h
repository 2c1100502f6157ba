// torch_patterns::histogram.
#pragma once
#include "torch/operator.h"

namespace tp {

struct Histogram {
  static constexpr auto schema =
      "histogram(Tensor x, SymInt bins, Scalar? min=None, Scalar? max=None, str algorithm=\"auto\") -> Tensor";
  Tensor x;
  SymInt bins;
  std::optional<at::Scalar> min, max;
  Str algorithm;

  Tensor kernel() const;
};

}  // namespace tp
