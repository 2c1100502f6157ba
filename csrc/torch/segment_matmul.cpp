// torch_patterns::segment_matmul and segment_matmul_wgrad: checks, kernels, Meta, derivatives.
//
// With y = x_s W_s for the rows x_s of segment s: grad x = segment_matmul(g, W^T), and grad W = segment_matmul_wgrad(x,
// g), which computes x_s^T g_s. Both are linear in each argument, so derivatives of every order are calls of these two.
#include <ATen/ATen.h>

#include <algorithm>

#include "segmented/matmul.h"
#include "torch/gradient.h"
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

  TP_DIFFERENTIABLE(Tensor);
  Autocast autocast() const { return Autocast::lower; }
};

struct SegmentMatmulWgrad {
  static constexpr auto schema =
      "segment_matmul_wgrad(Tensor x, Tensor offsets, Tensor grad, bool validate=False, str algorithm=\"auto\") -> "
      "Tensor";
  Tensor x, offsets, grad;
  bool validate;
  Str algorithm;

  TP_DIFFERENTIABLE(Tensor);
  Autocast autocast() const { return Autocast::lower; }
};

void check(const SegmentMatmul& m) {
  check_floats(matmul_name, {{"x", m.x}, {"weights", m.weights}});
  TORCH_CHECK_VALUE(m.x.dim() == 2 && m.weights.dim() == 3, matmul_name,
                    ": x must be a matrix and weights one per segment, got shapes ", m.x.sym_sizes(), " and ",
                    m.weights.sym_sizes());
  check_offsets(matmul_name, {"offsets", m.offsets}, {"x", m.x});
  TORCH_SYM_CHECK(m.weights.sym_size(0).sym_eq(m.offsets.sym_size(0) - 1), matmul_name,
                  ": weights must have one matrix per segment, ", m.offsets.sym_size(0) - 1, ", got shape ",
                  m.weights.sym_sizes());
  TORCH_SYM_CHECK(m.weights.sym_size(1).sym_eq(m.x.sym_size(1)), matmul_name, ": x has ", m.x.sym_size(1),
                  " columns, each of weights ", m.weights.sym_size(1), " rows");
  check_algorithm(segment_matmul::ladder, matmul_name, m.algorithm);
}

void check(const SegmentMatmulWgrad& m) {
  check_floats(wgrad_name, {{"x", m.x}, {"grad", m.grad}});
  TORCH_CHECK_VALUE(m.x.dim() == 2 && m.grad.dim() == 2, wgrad_name, ": x and grad must be matrices, got shapes ",
                    m.x.sym_sizes(), " and ", m.grad.sym_sizes());
  check_offsets(wgrad_name, {"offsets", m.offsets}, {"x", m.x});
  TORCH_SYM_CHECK(m.x.sym_size(0).sym_eq(m.grad.sym_size(0)), wgrad_name, ": x has ", m.x.sym_size(0), " rows, grad ",
                  m.grad.sym_size(0));
  check_algorithm(segment_matmul::ladder, wgrad_name, m.algorithm);
}

// The offsets on the host, clamped to 0..n and made non-decreasing.
std::vector<int64_t> on_host(const char* op, const Tensor& offsets, int64_t n, bool validate) {
  check_offset_values(op, {"offsets", offsets}, n, validate);
  const Tensor o = offsets.to(at::kLong).cpu().contiguous();
  std::vector<int64_t> result(o.const_data_ptr<int64_t>(), o.const_data_ptr<int64_t>() + o.numel());
  int64_t least = 0;
  for (int64_t& offset : result) offset = least = std::max(least, std::min(offset, n));
  return result;
}

template <class Op>
Tensor run_products(const char* name, const Op& op, const Tensor& other, int64_t cols, at::IntArrayRef sizes) {
  refuse_capture((std::string(name) + ": algorithm 'gemm'").c_str(), op.x);
  const Tensor in = op.x.contiguous(), by = other.contiguous();
  const std::vector<int64_t> offsets = on_host(name, op.offsets, in.size(0), op.validate);
  Tensor out = empty_result(sizes, in.options());
  segment_matmul::Args args{};
  args.outer = std::is_same_v<Op, SegmentMatmulWgrad>;
  args.x = in.const_data_ptr();
  args.other = by.const_data_ptr();
  args.out = out.mutable_data_ptr();
  args.offsets = offsets.data();
  args.n = in.size(0);
  args.inner = in.size(1);
  args.cols = cols;
  args.segments = int64_t(offsets.size()) - 1;
  args.dtype = dtype_of_tensor(name, in);
  if (out.numel() == 0) return out;
  if (args.inner == 0 && !args.outer) return out.zero_();
  run(segment_matmul::ladder, segment_matmul::choose, name, op.algorithm, in, args);
  return out;
}

Tensor SegmentMatmul::kernel() const {
  check(*this);
  return run_products(matmul_name, *this, weights, weights.size(2), {x.size(0), weights.size(2)});
}

Tensor SegmentMatmul::meta() const {
  check(*this);
  return at::empty_symint({x.sym_size(0), weights.sym_size(2)}, x.options());
}

Tensor SegmentMatmulWgrad::kernel() const {
  check(*this);
  return run_products(wgrad_name, *this, grad, grad.size(1), {offsets.size(0) - 1, x.size(1), grad.size(1)});
}

Tensor SegmentMatmulWgrad::meta() const {
  check(*this);
  return at::empty_symint({offsets.sym_size(0) - 1, x.sym_size(1), grad.sym_size(1)}, x.options());
}

Tensors SegmentMatmul::vjp(const Backward& b) const {
  const Tensor& g = b.grad();
  Tensor by_x, by_weights;
  if (b.wants(0)) by_x = call(SegmentMatmul{g, offsets, weights.transpose(1, 2), false, algorithm});
  if (b.wants(2)) by_weights = call(SegmentMatmulWgrad{x, offsets, g, false, algorithm});
  return {by_x, Tensor(), by_weights};
}

Tensors SegmentMatmul::jvp(const Forward& f) const {
  const auto product = [&](const Tensor& a, const Tensor& b) {
    return call(SegmentMatmul{a, offsets, b, false, algorithm});
  };
  return {product_rule(f, x, weights, product, 2)};
}

Tensors SegmentMatmulWgrad::vjp(const Backward& b) const {
  const Tensor& g = b.grad();
  Tensor by_x, by_grad;
  if (b.wants(0)) by_x = call(SegmentMatmul{grad, offsets, g.transpose(1, 2), false, algorithm});
  if (b.wants(2)) by_grad = call(SegmentMatmul{x, offsets, g, false, algorithm});
  return {by_x, Tensor(), by_grad};
}

Tensors SegmentMatmulWgrad::jvp(const Forward& f) const {
  const auto product = [&](const Tensor& a, const Tensor& b) {
    return call(SegmentMatmulWgrad{a, offsets, b, false, algorithm});
  };
  return {product_rule(f, x, grad, product, 2)};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<SegmentMatmul, SegmentMatmulWgrad>(m); }

}  // namespace
}  // namespace tp
