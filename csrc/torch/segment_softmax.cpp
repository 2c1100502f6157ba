// torch_patterns::segment_softmax and segment_log_softmax: checks, kernels, Meta, derivatives.
//
// With y the softmax, g a gradient of it or of its logarithm, x' a tangent, and sums over the segment of a row:
//   softmax       grad x = y (g - sum(y g)), and y' = y (x' - sum(y x')): the same formula;
//   log_softmax   grad x = g - y sum(g); (log y)' = x' - sum(y x').
// If the results of a segment are NaN, so are its gradients; no other segment is affected.
#include "torch/gradient.h"
#include "torch/segmented.h"
#include "torch/segments.h"

namespace tp {
namespace {

// Gives every row the sum of its segment.
Tensor sums(const Tensor& x, const Tensor& offsets, Str algorithm) {
  const Tensor sum = call(SegmentReduce{x, offsets, "sum", false, algorithm});
  return call(SegmentExpand{sum, offsets, x.sym_size(0), false, algorithm});
}

}  // namespace

template <bool logarithm>
Tensor SegmentSoftmaxOf<logarithm>::kernel() const {
  constexpr auto name = logarithm ? "segment_log_softmax" : "segment_softmax";
  check_float(name, "values", values);
  check_segments(name, {"values", values}, offsets);
  check_offset_values(name, {"offsets", offsets}, values.sym_size(0), validate);
  Tensor out = empty_result(values.sym_sizes(), values.options());
  if (is_done(out, segment_reduce::ladder, name, algorithm)) return out;
  const Tensor in = values.contiguous(), o = offsets.contiguous();
  auto args = segmented_args(name, in, o, in.size(0));
  args.step = segmented::Step::softmax;
  args.logarithm = logarithm;
  args.out = out.mutable_data_ptr();
  run(segment_reduce::ladder, segment_reduce::choose, name, algorithm, in, args);
  return out;
}

template <bool logarithm>
Tensors SegmentSoftmaxOf<logarithm>::vjp(const Backward& b) const {
  const auto acc = wide_dtype(b.output());
  const Tensor y = b.output().to(acc), g = b.grad().to(acc);
  const Tensor weighed = logarithm ? g : g * y;
  return {at::addcmul(weighed, logarithm ? y.exp() : y, sums(weighed, offsets, algorithm), -1)
              .to(b.output().scalar_type())};
}

template <bool logarithm>
Tensors SegmentSoftmaxOf<logarithm>::jvp(const Forward& f) const {
  const auto acc = wide_dtype(f.output());
  const Tensor t = f.tangent().to(acc), y = f.output().to(acc), weighed = t * (logarithm ? y.exp() : y);
  const Tensor sum = sums(weighed, offsets, algorithm);
  return {(logarithm ? t - sum : at::addcmul(weighed, y, sum, -1)).to(f.output().scalar_type())};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<SegmentSoftmax, SegmentLogSoftmax>(m); }

}  // namespace tp
