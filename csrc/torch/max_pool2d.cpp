// torch_patterns::max_pool2d, its backward, and max_pool2d_tangent, which takes x at given indices: checks, kernels,
// Meta, derivatives.
//
// At fixed indices pooling is linear: the tangent is that linear map, and the backward is its transpose. So each one's
// gradient is a call of the other, and derivatives of every order in both modes are calls of these two.
#include "torch/windows.h"

namespace tp {
namespace {

using pooling::Step;

constexpr const char *op_name = "max_pool2d", *backward_name = "max_pool2d_backward",
                     *tangent_name = "max_pool2d_tangent";
Pattern pattern(op_name, pooling::ladder);

#define TP_WINDOWS                                                                                                    \
  "SymInt[2] kernel_size, SymInt[2] stride=[], SymInt[2] padding=0, SymInt[2] dilation=1, bool ceil_mode=False, str " \
  "algorithm=\"auto\""

struct MaxPool2d {
  // Without return_indices, only the derivatives use the second result, so it is as narrow as the maps allow.
  static constexpr auto schema = "max_pool2d(Tensor x, " TP_WINDOWS ", bool return_indices=True) -> (Tensor, Tensor)";
  Tensor x;
  Sizes kernel_size, stride, padding, dilation;
  bool ceil_mode;
  Str algorithm;
  bool return_indices;

  TP_DIFFERENTIABLE(std::tuple<Tensor, Tensor>);
  bool keeps(size_t) const { return false; }
  bool keeps_output(size_t output) const { return output == 1; }
};

struct MaxPool2dBackward {
  static constexpr auto schema =
      "max_pool2d_backward(Tensor grad, Tensor indices, SymInt[2] input_size, " TP_WINDOWS ") -> Tensor";
  Tensor grad, indices;
  Sizes input_size, kernel_size, stride, padding, dilation;
  bool ceil_mode;
  Str algorithm;

  TP_LINEAR(Tensor)
  bool keeps(size_t input) const { return input == 1; }
};

struct MaxPool2dTangent {
  static constexpr auto schema = "max_pool2d_tangent(Tensor x, Tensor indices, " TP_WINDOWS ") -> Tensor";
  Tensor x, indices;
  Sizes kernel_size, stride, padding, dilation;
  bool ceil_mode;
  Str algorithm;

  TP_LINEAR(Tensor)
  bool keeps(size_t input) const { return input == 1; }
};

#undef TP_WINDOWS

template <class Op>
Windows windows_of(const char* name, const Op& op) {
  return {pair(name, "kernel_size", op.kernel_size), pair(name, "stride", op.stride, op.kernel_size),
          pair(name, "padding", op.padding), pair(name, "dilation", op.dilation), op.ceil_mode};
}

at::ScalarType index_type(const MaxPool2d& op) {
  const SymPair maps = maps_of(op.x);
  const bool wide = TORCH_STATICALLY_KNOWN_TRUE((maps[0] * maps[1]).sym_gt(std::numeric_limits<int32_t>::max()));
  return op.return_indices || wide ? at::kLong : at::kInt;
}

void give_indices(pooling::Args& args, const Tensor& indices) {
  args.indices = const_cast<void*>(indices.const_data_ptr());
  args.long_index = indices.scalar_type() == at::kLong;
}

}  // namespace

std::tuple<Tensor, Tensor> MaxPool2d::kernel() const {
  const Windows windows = windows_of(op_name, *this);
  check_maps(op_name, "x", x);
  TORCH_CHECK_TYPE(x.scalar_type() != at::kBool, op_name, ": x must be an integer or floating point, got ",
                   x.scalar_type());
  dtype_of_tensor(op_name, x);
  const SymPair outputs = count_windows(op_name, windows, maps_of(x));
  Tensor out = empty_maps(x, outputs, x.scalar_type()), index = empty_maps(x, outputs, index_type(*this));
  if (x.is_meta()) {
    check_algorithm(pooling::ladder, op_name, algorithm);
    return {out, index};
  }
  const auto format = format_of(x);
  const Tensor in = x.contiguous(format);
  auto args = pooling_args(op_name, in, format, windows, maps_of(x), outputs);
  check_taps(op_name, args);
  args.step = Step::maximum;
  args.x = in.const_data_ptr();
  args.y = out.mutable_data_ptr();
  give_indices(args, index);
  run(pooling::ladder, pooling::choose, op_name, algorithm, in, args);
  return {out, index};
}

Tensor MaxPool2dBackward::kernel() const {
  const Windows windows = windows_of(backward_name, *this);
  const SymPair size = pair(backward_name, "input_size", input_size);
  check_maps(backward_name, "grad", grad);
  check_float(backward_name, "grad", grad);
  check_same_device(backward_name, {{"grad", &grad}, {"indices", &indices}});
  check_same_shape(backward_name, {"grad", grad}, {"indices", indices});
  check_index_type(backward_name, {"indices", indices});
  check_shape(backward_name, "grad", grad, count_windows(backward_name, windows, size));
  Tensor out = empty_maps(grad, size, grad.scalar_type());
  if (is_done(out, pooling::ladder, backward_name, algorithm)) return out;
  const auto format = format_of(grad);
  const Tensor g = grad.contiguous(format), index = indices.contiguous(format);
  auto args = pooling_args(backward_name, g, format, windows, size, maps_of(grad));
  args.step = Step::maximum_backward;
  args.grad = g.const_data_ptr();
  give_indices(args, index);
  args.grad_x = out.mutable_data_ptr();
  run(pooling::ladder, pooling::choose, backward_name, algorithm, g, args);
  return out;
}

Tensor MaxPool2dTangent::kernel() const {
  const Windows windows = windows_of(tangent_name, *this);
  check_maps(tangent_name, "x", x);
  check_float(tangent_name, "x", x);
  const SymPair outputs = count_windows(tangent_name, windows, maps_of(x));
  check_maps(tangent_name, "indices", indices);
  check_shape(tangent_name, "indices", indices, outputs);
  check_same_device(tangent_name, {{"x", &x}, {"indices", &indices}});
  check_index_type(tangent_name, {"indices", indices});
  const auto outer = [](const Tensor& t) { return t.sym_sizes().slice(0, size_t(t.dim() - 2)); };
  TORCH_SYM_CHECK(sym_equals(outer(indices), outer(x)), tangent_name, ": x has shape ", x.sym_sizes(),
                  ", indices have ", indices.sym_sizes());
  Tensor out = empty_maps(x, outputs, x.scalar_type());
  if (is_done(out, pooling::ladder, tangent_name, algorithm)) return out;
  const auto format = format_of(x);
  const Tensor in = x.contiguous(format), index = indices.contiguous(format);
  auto args = pooling_args(tangent_name, in, format, windows, maps_of(x), outputs);
  args.step = Step::maximum_tangent;
  args.x = in.const_data_ptr();
  give_indices(args, index);
  args.y = out.mutable_data_ptr();
  run(pooling::ladder, pooling::choose, tangent_name, algorithm, in, args);
  return out;
}

// ---- derivatives

namespace {

// Calls with the windows of any of the three operators.
template <class Op>
Tensor take(const Tensor& x, const Tensor& indices, const Op& op) {
  return call(
      MaxPool2dTangent{x, indices, op.kernel_size, op.stride, op.padding, op.dilation, op.ceil_mode, op.algorithm});
}

template <class Op>
Tensor put(const Tensor& grad, const Tensor& indices, const Sizes& size, const Op& op) {
  return call(MaxPool2dBackward{grad, indices, size, op.kernel_size, op.stride, op.padding, op.dilation, op.ceil_mode,
                                op.algorithm});
}

}  // namespace

Tensors MaxPool2d::vjp(const Backward& b) const { return {put(b.grad(), b.output(1), maps_of(b.sizes(0)), *this)}; }
Tensors MaxPool2d::jvp(const Forward& f) const { return {take(f.tangent(), f.output(1), *this)}; }
Tensors MaxPool2dBackward::vjp(const Backward& b) const { return {take(b.grad(), indices, *this)}; }
Tensors MaxPool2dTangent::vjp(const Backward& b) const { return {put(b.grad(), indices, maps_of(b.sizes(0)), *this)}; }

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<MaxPool2d, MaxPool2dBackward, MaxPool2dTangent>(m); }

}  // namespace tp
