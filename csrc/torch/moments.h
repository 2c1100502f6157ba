// The derivatives of all reductions of rows, for any grouping of rows. `Rows` stands for the grouping: reduce(x, op)
// returns one row per group; expand(y) gives every row the value of its group; counts(x) returns the number of rows per
// group, shaped for groups of rows x and in their wide dtype; product_of_others() returns, for every row, the product
// of the other rows of its group, in the wide dtype.
//
//   sum        every row gets the gradient of its group;
//   mean       so divided by the number of rows;
//   prod       times the product of all other rows: zeros need no care;
//   max, min   the first of the extreme rows gets the gradient. In an empty group, no row;
//   logsumexp, var, std   times a factor per row.
// Forward mode: for sum and mean, the same reduction of the tangents; for those with factors, the sum of the tangents
// times the factors; for extrema, the tangent of the first of the extreme rows.
#pragma once
#include <ATen/ATen.h>

#include "torch/gradient.h"
#include "torch/segments.h"

namespace tp {

// d result / d row for prod, var, std and logsumexp, in the wide dtype. It is 0 if the standard deviation is 0, and if
// all values of a logsumexp are -inf.
template <class Rows>
Tensor factors_of(Str op, const Tensor& values, const Rows& rows) {
  if (op == "prod") return rows.product_of_others();
  const Tensor wide = values.to(wide_dtype(values));
  if (op == "logsumexp") {
    const Tensor y = rows.reduce(wide, op);
    return (wide - rows.expand(y.masked_fill(y == -std::numeric_limits<double>::infinity(), 0))).exp();
  }
  const Tensor away = wide - rows.expand(rows.reduce(wide, "mean")), others = (rows.counts(wide) - 1).clamp_min(0);
  if (op == "var") return away * rows.expand(2 / others * at::ones_like(rows.reduce(wide, "sum")));
  const Tensor spread = rows.reduce(wide, op);
  return away * rows.expand((1 / (others * spread)).masked_fill(spread == 0, 0));
}

// The row of each group's extremum, and n for an empty group.
template <class Rows>
Tensor extreme_rows(Str op, const Tensor& values, const Rows& rows) {
  const Tensor found = rows.reduce(values.detach(), op == "max" ? "argmax" : "argmin");
  return found.masked_fill(found.lt(0), c10::Scalar(values.sym_size(0)));
}

// For sum and mean, `values` is not used.
template <class Rows>
Tensors reduction_vjp(Str op, const Tensor& values, const Rows& rows, const Tensor& g) {
  if (op == "sum") return {rows.expand(g)};
  const Tensor wide = g.to(wide_dtype(g));
  if (op == "mean") return {rows.expand((wide / rows.counts(g).clamp_min(1)).to(g.scalar_type()))};
  if (op == "max" || op == "min") {
    // Empty groups use an additional last row, which is cut off afterwards.
    const SymInt n = values.sym_size(0);
    const Tensor grads = at::zeros_symint(with_rows(values, n + 1), g.options());
    return {grads.scatter(0, extreme_rows(op, values, rows), g).narrow_symint(0, 0, n)};
  }
  return {(rows.expand(wide) * factors_of(op, values, rows)).to(values.scalar_type())};
}

template <class Rows>
Tensors reduction_jvp(Str op, const Tensor& values, const Rows& rows, const Tensor& t) {
  if (op == "sum" || op == "mean") return {rows.reduce(t, op)};
  if (op == "max" || op == "min") {
    // Empty groups read an additional last row, which is 0.
    return {with_zero_row(t).gather(0, extreme_rows(op, values, rows))};
  }
  return {rows.reduce(t.to(wide_dtype(t)) * factors_of(op, values, rows), "sum").to(t.scalar_type())};
}

}  // namespace tp
