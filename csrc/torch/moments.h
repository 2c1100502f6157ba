// Reductions of rows that are compositions of others, and the derivatives of those whose gradient is a factor per row,
// whatever says which rows are combined: `reduce(x, op)` gives one row per group, and `expand(y)` gives every row that
// of its group.
#pragma once
#include <ATen/ATen.h>

#include "torch/operator.h"

namespace tp {

// The variance of n values is the sum of their squared distances from the mean over n - 1: NaN for fewer than two
// values, as in torch. Both in the dtype of `wide`, which has no half type.
inline bool is_moment(Str op) { return op == "var" || op == "std"; }

// Rows less the mean of their group.
template <class Reduce, class Expand>
Tensor deviations(const Tensor& wide, Reduce reduce, Expand expand) {
  return wide - expand(reduce(wide, "mean"));
}

template <class Reduce, class Expand>
Tensor moment(Str op, const Tensor& wide, const Tensor& counts, Reduce reduce, Expand expand) {
  const Tensor away = deviations(wide, reduce, expand);
  const Tensor variance = reduce(away * away, "sum") / (counts - 1).clamp_min(0);
  return op == "var" ? variance : variance.sqrt();
}

// d result / d row for var, std and logsumexp, in the dtype of `wide`; that of a standard deviation of 0 is 0, and that
// of a logsumexp over nothing but -inf is, too.
template <class Reduce, class Expand>
Tensor factors_of(Str op, const Tensor& wide, const Tensor& counts, Reduce reduce, Expand expand) {
  if (op == "logsumexp") {
    const Tensor y = reduce(wide, op);
    return (wide - expand(y.masked_fill(y == -std::numeric_limits<double>::infinity(), 0))).exp();
  }
  const Tensor away = deviations(wide, reduce, expand), others = (counts - 1).clamp_min(0);
  if (op == "var") return away * expand(2 / others * at::ones_like(reduce(wide, "sum")));
  const Tensor spread = moment(op, wide, counts, reduce, expand);
  return away * expand((1 / (others * spread)).masked_fill(spread == 0, 0));
}

}  // namespace tp
