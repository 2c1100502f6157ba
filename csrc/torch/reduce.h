// torch_patterns::reduce (PMPP chapter 10).
#pragma once
#include "torch/operator.h"

namespace tp {

struct Reduce {
  static constexpr auto schema =
      "reduce(Tensor x, int[1]? dim=None, str op=\"sum\", bool keepdim=False, str algorithm=\"auto\") -> Tensor";
  Tensor x;
  std::optional<std::vector<int64_t>> dim;
  Str op;
  bool keepdim;
  Str algorithm;

  TP_DIFFERENTIABLE(Tensor);
  bool keeps(size_t) const { return op != "sum" && op != "mean"; }
  bool keeps_output(size_t) const { return op == "logsumexp"; }
  Autocast autocast() const;
};

}  // namespace tp
