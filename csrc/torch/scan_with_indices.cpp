// torch_patterns::scan_with_indices: the running extremum and the index where it was first reached, by one pass of its
// own, or, for rungs that lack this pass, by scans and compactions.
//
// An element leads if it beats all elements before it. A second scan carries its position on to the next leader, which
// gives the index. The gradient of a leader is the sum over the run that it leads. The runs are adjacent, so they are
// segments: a compaction of all positions gives their starts, and its transpose puts the sums at the leaders. No value
// is multiplied by a flag, so NaN stays in its run. The tangent of a running extremum is the tangent of its leader.
#include <ATen/ATen.h>

#include "scan/extrema.h"
#include "scan/scan.h"
#include "torch/compact.h"
#include "torch/gradient.h"
#include "torch/scan.h"
#include "torch/segmented.h"

namespace tp {
namespace {

constexpr const char* op_name = "scan_with_indices";
using TwoTensors = std::tuple<Tensor, Tensor>;

// Positions along `dim`, shaped to broadcast with x.
Tensor positions_of(const Tensor& x, int64_t dim) {
  std::vector<SymInt> shape(size_t(x.dim()), 1);
  if (x.dim() > 0) shape[size_t(dim)] = x.sym_size(dim);
  return at::arange(x.dim() > 0 ? x.sym_size(dim) : SymInt(1), x.options().dtype(at::kLong)).view_symint(shape);
}

bool has_one_pass(const Tensor& x, Str algorithm) {
  return scan::has_one_pass(std::string(algorithm).c_str(), x.is_cuda(), x.numel());
}

TwoTensors empty_results(const Tensor& x) {
  return {empty_result(x.sym_sizes(), x.options()), empty_result(x.sym_sizes(), x.options().dtype(at::kLong))};
}

TwoTensors in_one_pass(const Tensor& x, int64_t dim, bool least, bool reverse) {
  scan::ExtremaArgs args{};
  set_lines(args, x, dim);
  if (x.is_cuda() && !scan::scanned_in_place(args)) {
    const auto [values, indices] = in_one_pass(x.movedim(dim, -1), x.dim() - 1, least, reverse);
    return {values.movedim(-1, dim).contiguous(), indices.movedim(-1, dim).contiguous()};
  }
  const Tensor in = x.contiguous();
  auto [values, indices] = empty_results(in);
  if (in.numel() == 0) return {values, indices};
  args.in = in.const_data_ptr();
  args.out = values.mutable_data_ptr();
  args.index = indices.mutable_data_ptr<int64_t>();
  args.dtype = dtype_of_tensor(op_name, in);
  args.least = least;
  args.reverse = reverse;
  with_context(in, [&](TorchContext& context) {
    if constexpr (with_cuda) {
      if (context.device.cuda) return scan::running_extrema_on_device(args, context);
    }
    scan::running_extrema(args, context);
  });
  return {values, indices};
}

}  // namespace

TwoTensors ScanWithIndices::kernel() const {
  TORCH_CHECK_VALUE(op == "max" || op == "min", op_name, ": unknown op '", std::string(op), "'; choose from: max, min");
  dtype_of_tensor(op_name, x);
  const int64_t along = wrap_dim(op_name, dim, x.dim());
  if (x.is_meta()) {
    check_algorithm(scan::ladder, op_name, algorithm);
    return empty_results(x);
  }
  if (has_one_pass(x, algorithm)) return in_one_pass(x, along, op == "min", reverse);
  const auto scan = [&](const Tensor& t, Str extremum, bool exclusive) {
    return call(Scan{t, along, extremum, exclusive, reverse, algorithm});
  };
  const Tensor values = scan(x, op, false), before = scan(x, op, true), positions = positions_of(x, along);
  const int64_t start = reverse ? positions.numel() - 1 : 0;
  Tensor leads = (op == "max" ? x > before : x < before) | (positions == start);
  if (x.is_floating_point()) leads |= x.isnan() & ~before.isnan();
  // In scan order positions increase (or decrease, in reverse), so the latest leader has the extreme one.
  return {values, scan(at::where(leads, positions, start), reverse ? "min" : "max", false)};
}

namespace {

Tensor sum_over_runs(const Tensor& grad, const Tensor& indices, int64_t dim, bool reverse) {
  const auto in_scan_order = [&](const Tensor& x) {
    const Tensor lines = x.movedim(dim, -1);
    return (reverse ? lines.flip(-1) : lines).contiguous();
  };
  const Tensor g = in_scan_order(grad), flags = in_scan_order(indices == positions_of(indices, dim));
  const SymInt n = flags.sym_numel();
  const Tensor leads = flags.reshape_symint({n});
  const Tensor all = at::arange(n, indices.options());
  const Tensor starts = std::get<0>(call(CompactPadded{all, leads, n, "auto"}));
  const Tensor offsets = at::cat({starts, at::full_symint({1}, n, indices.options())});
  const Tensor sums = call(SegmentReduce{g.reshape_symint({n}), offsets, "sum", false, "auto"});
  const Tensor result = call(CompactBackward{sums, leads, "auto"}).view_symint(g.sym_sizes());
  return (reverse ? result.flip(-1) : result).movedim(-1, dim).contiguous();
}

}  // namespace

Tensors ScanWithIndices::vjp(const Backward& b) const {
  const Tensor &g = b.grad(), &indices = b.output(1);
  if (g.dim() == 0 || TORCH_GUARD_OR_FALSE(g.sym_numel().sym_eq(0))) return {g.clone()};  // at most one element
  return {sum_over_runs(g, indices, wrap_dim(op_name, dim, g.dim()), reverse)};
}

Tensors ScanWithIndices::jvp(const Forward& f) const {
  const Tensor& t = f.tangent();
  return {t.dim() == 0 ? t.clone() : t.gather(wrap_dim(op_name, dim, t.dim()), f.output(1))};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<ScanWithIndices>(m); }

}  // namespace tp
