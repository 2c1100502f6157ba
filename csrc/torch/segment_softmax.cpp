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

constexpr const char* name_of_op(bool logarithm) { return logarithm ? "segment_log_softmax" : "segment_softmax"; }

void check(const char* name, const Tensor& values, const Tensor& offsets) {
  check_float(name, "values", values);
  check_segments(name, {"values", values}, offsets);
}

// Gives every row the sum of its segment.
Tensor sums(const Tensor& x, const Tensor& offsets, Str algorithm) {
  const Tensor sum = call(SegmentReduce{x, offsets, "sum", false, algorithm});
  return call(SegmentExpand{sum, offsets, x.sym_size(0), false, algorithm});
}

}  // namespace

template <bool logarithm>
Tensor SegmentSoftmaxOf<logarithm>::kernel() const {
  constexpr auto name = name_of_op(logarithm);
  check(name, values, offsets);
  const Tensor in = values.contiguous(), o = offsets.contiguous();
  check_offset_values(name, {"offsets", o}, in.size(0), validate);
  Tensor out = empty_result(in.sizes(), in.options());
  auto args = segmented_args(name, in, o, in.size(0));
  args.step = segmented::Step::softmax;
  args.logarithm = logarithm;
  args.out = out.mutable_data_ptr();
  run_unless_empty(out, segment_reduce::ladder, segment_reduce::choose, name, algorithm, in, args);
  return out;
}

template <bool logarithm>
Tensor SegmentSoftmaxOf<logarithm>::meta() const {
  check(name_of_op(logarithm), values, offsets);
  check_algorithm(segment_reduce::ladder, name_of_op(logarithm), algorithm);
  return at::empty_symint(values.sym_sizes(), values.options());
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
