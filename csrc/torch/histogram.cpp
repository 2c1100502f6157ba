// torch_patterns::histogram: schema, checks, Meta, Autograd. Counts are integers: there is nothing to differentiate,
// and the Autograd kernel only says so.
#include "histogram/histogram.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>

#include "torch/glue.h"

namespace tp {
namespace {

using c10::SymInt;
using OptionalNumber = std::optional<at::Scalar>;

constexpr const char* name = "histogram";
Pattern pattern(name, histogram::ladder);

double end_of_range(const char* which, const OptionalNumber& value) {
  if (!value) return std::numeric_limits<double>::quiet_NaN();
  const double x = value->toDouble();
  TORCH_CHECK_VALUE(std::isfinite(x), name, ": ", which, " must be finite, got ", x);
  return x;
}

// All but the sizes and addresses.
histogram::Args check(const Tensor& x, const SymInt& bins, const OptionalNumber& min, const OptionalNumber& max) {
  histogram::Args args{};
  args.dtype = dtype_of_tensor(name, x);
  TORCH_CHECK_VALUE(bins > 0, name, ": bins must be positive, got ", bins);
  args.min = end_of_range("min", min);
  args.max = end_of_range("max", max);
  TORCH_CHECK_VALUE(!(args.min > args.max), name, ": min ", args.min, " is greater than max ", args.max);
  args.uniform = x.is_floating_point() || min || max;
  return args;
}

Tensor histogram_kernel(const Tensor& x, int64_t bins, const OptionalNumber& min, const OptionalNumber& max,
                        Str algorithm) {
  histogram::Args args = check(x, bins, min, max);
  const Tensor in = x.contiguous();
  Tensor counts = at::empty({bins}, in.options().dtype(at::kLong));
  args.in = in.const_data_ptr();
  args.counts = counts.mutable_data_ptr<int64_t>();
  args.n = in.numel();
  args.bins = bins;
  run(histogram::ladder, histogram::choose, name, algorithm, in, args);
  return counts;
}

Tensor histogram_meta(const Tensor& x, SymInt bins, const OptionalNumber& min, const OptionalNumber& max,
                      Str algorithm) {
  check(x, bins, min, max);
  check_algorithm(histogram::ladder, name, algorithm);
  return at::empty_symint({bins}, x.options().dtype(at::kLong));
}

Tensor histogram_autograd(const Tensor& x, SymInt bins, const OptionalNumber& min, const OptionalNumber& max,
                          Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, SymInt, const OptionalNumber&, const OptionalNumber&, Str)>(name);
  at::AutoDispatchBelowADInplaceOrView below;
  return handle.call(x, bins, min, max, algorithm);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  m.def("histogram(Tensor x, SymInt bins, Scalar? min=None, Scalar? max=None, str algorithm=\"auto\") -> Tensor",
        {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { m.impl(name, &histogram_kernel); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { m.impl(name, &histogram_kernel); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) { m.impl(name, &histogram_meta); }
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) { m.impl(name, &histogram_autograd); }

}  // namespace
}  // namespace tp
