// torch_patterns::histogram: checks, kernel, Meta. Counts are integers, so there is no derivative.
#include "torch/histogram.h"

#include <ATen/ATen.h>

#include <cmath>

#include "histogram/histogram.h"

namespace tp {
namespace {

constexpr const char* op_name = "histogram";
Pattern pattern(op_name, histogram::ladder);

// An end of the range; NaN if it is not given or not known yet.
double end_of_range(const char* which, const std::optional<at::Scalar>& value) {
  if (!value || value->isSymbolic()) return std::numeric_limits<double>::quiet_NaN();
  const double x = value->toDouble();
  TORCH_CHECK_VALUE(std::isfinite(x), op_name, ": ", which, " must be finite, got ", x);
  return x;
}

}  // namespace

Tensor Histogram::kernel() const {
  histogram::Args args{};
  args.dtype = dtype_of_tensor(op_name, x);
  TORCH_CHECK_VALUE(TORCH_GUARD_OR_TRUE(bins.sym_gt(0)), op_name, ": bins must be positive, got ", bins);
  args.min = end_of_range("min", min);
  args.max = end_of_range("max", max);
  TORCH_CHECK_VALUE(!(args.min > args.max), op_name, ": min ", args.min, " is greater than max ", args.max);
  Tensor counts = empty_result({bins}, x.options().dtype(at::kLong));
  if (is_done(counts, histogram::ladder, op_name, algorithm)) return counts;
  const Tensor in = x.contiguous();
  args.uniform = x.is_floating_point() || min || max;
  args.bins = counts.numel();
  args.in = in.const_data_ptr();
  args.counts = counts.mutable_data_ptr<int64_t>();
  args.n = in.numel();
  run(histogram::ladder, histogram::choose, op_name, algorithm, in, args);
  return counts;
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<Histogram>(m); }

}  // namespace tp
