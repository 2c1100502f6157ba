// torch_patterns::segment_matmul and segment_matmul_wgrad: checks, kernels, Meta, derivatives.
//
// With y = x_s W_s for the rows x_s of segment s: grad x = segment_matmul(g, W^T), and grad W = segment_matmul_wgrad(x,
// g), which computes x_s^T g_s. Both are linear in each argument, so derivatives of every order are calls of these two.
#include <ATen/ATen.h>

#include <algorithm>

#include "segmented/matmul.h"
#include "torch/index.h"

namespace tp {
namespace {

constexpr const char *matmul_name = "segment_matmul", *wgrad_name = "segment_matmul_wgrad";
Pattern pattern(matmul_name, segment_matmul::ladder);

struct SegmentMatmul {
  static constexpr auto schema =
      "segment_matmul(Tensor x, Tensor offsets, Tensor weights, bool validate=False, str algorithm=\"auto\") -> Tensor";
  Tensor x, offsets, weights;
  bool validate;
  Str algorithm;

  TP_LINEAR(Tensor)
  Autocast autocast() const { return Autocast::lower; }
};

struct SegmentMatmulWgrad {
  static constexpr auto schema =
      "segment_matmul_wgrad(Tensor x, Tensor offsets, Tensor grad, bool validate=False, str algorithm=\"auto\") -> "
      "Tensor";
  Tensor x, offsets, grad;
  bool validate;
  Str algorithm;

  TP_LINEAR(Tensor)
  Autocast autocast() const { return Autocast::lower; }
};

// Clamps offsets to 0..n and makes them non-decreasing.
void make_valid(std::vector<int64_t>& offsets, int64_t n) {
  int64_t least = 0;
  for (int64_t& offset : offsets) offset = least = std::max(least, std::min(offset, n));
}

template <class Op>
Tensor run_products(const char* name, const Op& op, const Tensor& other, const Sizes& sizes) {
  check_algorithm(segment_matmul::ladder, name, op.algorithm);
  if (op.x.is_meta()) return empty_result(sizes, op.x.options());
  const Tensor in = op.x.contiguous(), by = other.contiguous();
  check_offset_values(name, {"offsets", op.offsets}, in.size(0), op.validate);
  Tensor out = empty_result(sizes, op.x.options());
  if (out.numel() == 0) return out;
  segment_matmul::Args args{};
  args.outer = std::is_same_v<Op, SegmentMatmulWgrad>;
  args.x = in.const_data_ptr();
  args.other = by.const_data_ptr();
  args.out = out.mutable_data_ptr();
  args.n = in.size(0);
  args.inner = in.size(1);
  args.cols = out.size(-1);
  args.segments = op.offsets.size(0) - 1;
  args.dtype = dtype_of_tensor(name, in);
  if (args.inner == 0) return out.zero_();
  const Tensor offsets = op.offsets.to(at::kLong).contiguous();
  args.offsets = offsets.const_data_ptr<int64_t>();
  std::vector<int64_t> valid;
  args.valid_offsets = [&] {
    const Tensor on_host = offsets.cpu();
    valid.assign(on_host.const_data_ptr<int64_t>(), on_host.const_data_ptr<int64_t>() + on_host.numel());
    make_valid(valid, args.n);
    return valid.data();
  };
  run(segment_matmul::ladder, segment_matmul::choose, name, op.algorithm, in, args);
  return out;
}

Tensor SegmentMatmul::kernel() const {
  check_floats(matmul_name, {{"x", x}, {"weights", weights}});
  TORCH_CHECK_VALUE(x.dim() == 2 && weights.dim() == 3, matmul_name,
                    ": x must be a matrix and weights one per segment, got shapes ", x.sym_sizes(), " and ",
                    weights.sym_sizes());
  check_offsets(matmul_name, {"offsets", offsets}, {"x", x});
  TORCH_CHECK_VALUE(weights.sym_size(0).sym_eq(offsets.sym_size(0) - 1).expect_true(__FILE__, __LINE__), matmul_name,
                    ": weights must have one matrix per segment, ", offsets.sym_size(0) - 1, ", got shape ",
                    weights.sym_sizes());
  TORCH_CHECK_VALUE(weights.sym_size(1).sym_eq(x.sym_size(1)).expect_true(__FILE__, __LINE__), matmul_name, ": x has ",
                    x.sym_size(1), " columns, each of weights ", weights.sym_size(1), " rows");
  return run_products(matmul_name, *this, weights, {x.sym_size(0), weights.sym_size(2)});
}

Tensor SegmentMatmulWgrad::kernel() const {
  check_floats(wgrad_name, {{"x", x}, {"grad", grad}});
  TORCH_CHECK_VALUE(x.dim() == 2 && grad.dim() == 2, wgrad_name, ": x and grad must be matrices, got shapes ",
                    x.sym_sizes(), " and ", grad.sym_sizes());
  check_offsets(wgrad_name, {"offsets", offsets}, {"x", x});
  TORCH_CHECK_VALUE(x.sym_size(0).sym_eq(grad.sym_size(0)).expect_true(__FILE__, __LINE__), wgrad_name, ": x has ",
                    x.sym_size(0), " rows, grad ", grad.sym_size(0));
  return run_products(wgrad_name, *this, grad, {offsets.sym_size(0) - 1, x.sym_size(1), grad.sym_size(1)});
}

Tensors SegmentMatmul::vjp(const Backward& b) const {
  const Tensor& g = b.grad();
  Tensor by_x, by_weights;
  if (b.wants(0)) by_x = call(SegmentMatmul{g, offsets, weights.transpose(1, 2), false, algorithm});
  if (b.wants(2)) by_weights = call(SegmentMatmulWgrad{x, offsets, g, false, algorithm});
  return {by_x, Tensor(), by_weights};
}

Tensors SegmentMatmulWgrad::vjp(const Backward& b) const {
  const Tensor& g = b.grad();
  Tensor by_x, by_grad;
  if (b.wants(0)) by_x = call(SegmentMatmul{grad, offsets, g.transpose(1, 2), false, algorithm});
  if (b.wants(2)) by_grad = call(SegmentMatmul{x, offsets, g, false, algorithm});
  return {by_x, Tensor(), by_grad};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<SegmentMatmul, SegmentMatmulWgrad>(m); }

}  // namespace
}  // namespace tp
