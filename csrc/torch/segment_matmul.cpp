// torch_patterns::segment_matmul and segment_matmul_wgrad: checks, kernels, Meta, derivatives.
//
// With y = x_s W_s for the rows x_s of segment s: grad x = segment_matmul(g, W^T), and grad W = segment_matmul_wgrad(x,
// g), which computes x_s^T g_s. Both are linear in each argument, so derivatives of every order are calls of these two.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#ifdef TP_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

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

// A copy of the offsets on the host. On CUDA it takes place in the order of the stream, and the host does not wait for
// what is launched after it.
class OnHost {
 public:
  explicit OnHost(const Tensor& offsets) : event_(offsets.device().type()) {
    copy_ = at::empty(offsets.sizes(), at::device(at::kCPU).dtype(at::kLong).pinned_memory(offsets.is_cuda()));
    copy_.copy_(offsets.to(at::kLong), /*non_blocking=*/true);
    if (!offsets.is_cuda()) return;  // the copy has been made
    const c10::impl::VirtualGuardImpl device(offsets.device().type());
    event_.record(device.getStream(offsets.device()));
  }
  std::vector<int64_t> wait() {
    event_.synchronize();  // at once if nothing was recorded
    return {copy_.const_data_ptr<int64_t>(), copy_.const_data_ptr<int64_t>() + copy_.numel()};
  }

 private:
  Tensor copy_;
  c10::Event event_;
};

// Clamps offsets to 0..n and makes them non-decreasing.
void make_valid(std::vector<int64_t>& offsets, int64_t n) {
  int64_t least = 0;
  for (int64_t& offset : offsets) offset = least = std::max(least, std::min(offset, n));
}

// torch's product of all segments in one launch, with sums in float32: in bfloat16, on devices of compute capability
// 9.0, for fewer than 1,024 segments of rows of whole vectors of 16 bytes. Elsewhere undefined. It is right if the
// segments cover all rows; the device makes other offsets such that no memory outside is touched. An empty segment has
// no defined matrix in the result if `outer`.
Tensor grouped_product(bool outer, const Tensor& x, const Tensor& other, const Tensor& offsets) {
#ifdef TP_WITH_CUDA
  const int64_t n = x.size(0), segments = offsets.size(0) - 1, vector = 8;
  if (!x.is_cuda() || x.scalar_type() != at::kBFloat16 || x.numel() == 0 || other.numel() == 0) return {};
  if (n > std::numeric_limits<int32_t>::max() || segments < 1 || segments >= 1024) return {};
  if (x.size(1) % vector != 0 || other.size(-1) % vector != 0) return {};
  for (const Tensor& t : {x, other}) {
    if (reinterpret_cast<uintptr_t>(t.const_data_ptr()) % (vector * sizeof(at::BFloat16)) != 0) return {};
  }
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, x.get_device());
  if (major != 9) return {};
  at::AutoDispatchBelowADInplaceOrView below;
  const Tensor ends = std::get<0>(at::cummax(offsets.narrow(0, 1, segments).clamp(0, n), 0)).to(at::kInt);
  // A dimension of size 1 may have any stride in a contiguous tensor, which torch's product refuses.
  const auto packed = [](const Tensor& t) { return t.view(-1).view(t.sizes()); };
  const Tensor rows = packed(x);
  return at::_grouped_mm(outer ? rows.t() : rows, packed(other), ends).contiguous();
#else
  (void)outer, (void)x, (void)other, (void)offsets;
  return {};
#endif
}

template <class Op>
Tensor run_products(const char* name, const Op& op, const Tensor& other, const Sizes& sizes) {
  check_algorithm(segment_matmul::ladder, name, op.algorithm);
  if (op.x.is_meta()) return empty_result(sizes, op.x.options());
  refuse_capture((std::string(name) + ": algorithm 'gemm'").c_str(), op.x);
  constexpr bool outer = std::is_same_v<Op, SegmentMatmulWgrad>;
  const Tensor in = op.x.contiguous(), by = other.contiguous();
  const int64_t n = in.size(0);
  check_offset_values(name, {"offsets", op.offsets}, n, op.validate);
  // The product is launched before the host has read the offsets, so that the device need not wait for the host.
  OnHost copy(op.offsets);
  const Tensor product = grouped_product(outer, in, by, op.offsets);
  std::vector<int64_t> offsets = copy.wait();
  const bool covers = offsets.front() == 0 && offsets.back() == n && std::is_sorted(offsets.begin(), offsets.end());
  if (product.defined() && covers) {
    if (op.algorithm != "auto") {  // a name that the device does not offer is an error here, too
      translate_errors([&] { find(segment_matmul::ladder, name, op.algorithm, op.x.is_cuda()); });
    }
    for (size_t s = 0; outer && s + 1 < offsets.size(); ++s) {
      if (offsets[s] == offsets[s + 1]) product[int64_t(s)].zero_();
    }
    return product;
  }
  make_valid(offsets, n);
  Tensor out = empty_result(sizes, op.x.options());
  segment_matmul::Args args{};
  args.outer = outer;
  args.x = in.const_data_ptr();
  args.other = by.const_data_ptr();
  args.out = out.mutable_data_ptr();
  args.offsets = offsets.data();
  args.n = n;
  args.inner = in.size(1);
  args.cols = out.size(-1);
  args.segments = int64_t(offsets.size()) - 1;
  args.dtype = dtype_of_tensor(name, in);
  if (out.numel() == 0) return out;
  if (args.inner == 0 && !outer) return out.zero_();
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
