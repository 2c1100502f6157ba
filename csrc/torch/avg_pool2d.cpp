// torch_patterns::avg_pool2d and its backward: checks, kernels, Meta, derivatives. Both are linear, and each is the
// transpose of the other: the gradient of one is a call of the other, and its tangent is a call of itself.
#include "torch/avg_pool2d.h"

namespace tp {
namespace {

using pooling::Step;

constexpr const char *op_name = "avg_pool2d", *backward_name = "avg_pool2d_backward";
Pattern pattern(op_name, pooling::ladder);

struct AvgPool2dBackward {
  static constexpr auto schema =
      "avg_pool2d_backward(Tensor grad, SymInt[2] input_size, SymInt[2] kernel_size, SymInt[2] stride=[], SymInt[2] "
      "padding=0, bool ceil_mode=False, bool count_include_pad=True, str algorithm=\"auto\") -> Tensor";
  Tensor grad;
  Sizes input_size, kernel_size, stride, padding;
  bool ceil_mode, count_include_pad;
  Str algorithm;

  TP_LINEAR(Tensor)
  bool keeps(size_t) const { return false; }
};

template <class Op>
Windows windows_of(const char* name, const Op& op) {
  return {pair(name, "kernel_size", op.kernel_size),
          pair(name, "stride", op.stride, op.kernel_size),
          pair(name, "padding", op.padding),
          {1, 1},
          op.ceil_mode,
          op.count_include_pad};
}

}  // namespace

Tensor AvgPool2d::kernel() const {
  const Windows windows = windows_of(op_name, *this);
  check_maps(op_name, "x", x);
  check_float(op_name, "x", x);
  const SymPair outputs = count_windows(op_name, windows, maps_of(x));
  Tensor out = empty_maps(x, outputs, x.scalar_type());
  if (is_done(out, pooling::ladder, op_name, algorithm)) return out;
  const auto format = format_of(x);
  const Tensor in = x.contiguous(format);
  auto args = pooling_args(op_name, in, format, windows, maps_of(x), outputs);
  args.step = Step::average;
  args.x = in.const_data_ptr();
  args.y = out.mutable_data_ptr();
  run(pooling::ladder, pooling::choose, op_name, algorithm, in, args);
  return out;
}

Tensor AvgPool2dBackward::kernel() const {
  const Windows windows = windows_of(backward_name, *this);
  const SymPair size = pair(backward_name, "input_size", input_size);
  check_maps(backward_name, "grad", grad);
  check_float(backward_name, "grad", grad);
  check_shape(backward_name, "grad", grad, count_windows(backward_name, windows, size));
  Tensor out = empty_maps(grad, size, grad.scalar_type());
  if (is_done(out, pooling::ladder, backward_name, algorithm)) return out;
  const auto format = format_of(grad);
  const Tensor g = grad.contiguous(format);
  auto args = pooling_args(backward_name, g, format, windows, size, maps_of(grad));
  args.step = Step::average_backward;
  args.grad = g.const_data_ptr();
  args.grad_x = out.mutable_data_ptr();
  run(pooling::ladder, pooling::choose, backward_name, algorithm, g, args);
  return out;
}

Tensors AvgPool2d::vjp(const Backward& b) const {
  return {call(AvgPool2dBackward{b.grad(), maps_of(b.sizes(0)), kernel_size, stride, padding, ceil_mode,
                                 count_include_pad, algorithm})};
}

Tensors AvgPool2dBackward::vjp(const Backward& b) const {
  return {call(AvgPool2d{b.grad(), kernel_size, stride, padding, ceil_mode, count_include_pad, algorithm})};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<AvgPool2d, AvgPool2dBackward>(m); }

}  // namespace tp
