// torch_patterns::scan_with_indices: the running extremum and where it was first reached, out of scans and compactions.
//
// An element leads if it beats all before it. Its position, carried on to the next leader by another scan, is the
// index. The gradient of a leader is the sum over the run that it leads. Runs lie end to end, so they are segments,
// their starts are a compaction of all positions, and unpacking puts the sums where the leaders are. Nothing is
// multiplied by a flag: NaN stays in its run.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include "scan/scan.h"
#include "torch/glue.h"

namespace tp {
namespace {

using c10::SymInt;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using TwoTensors = std::tuple<Tensor, Tensor>;

constexpr const char* name = "scan_with_indices";

TwoTensors call(const Tensor& x, int64_t dim, Str extremum, bool reverse, Str algorithm) {
  static const auto handle = op<TwoTensors(const Tensor&, int64_t, Str, bool, Str)>(name);
  return handle.call(x, dim, extremum, reverse, algorithm);
}

int64_t check(const Tensor& x, int64_t dim, Str extremum) {
  TORCH_CHECK_VALUE(extremum == "max" || extremum == "min", name, ": unknown op '", std::string(extremum),
                    "'; choose from: max, min");
  dtype_of_tensor(name, x);
  return wrap_dim(name, dim, x.dim());
}

// ---- kernels: CPU and CUDA alike

// Positions along `dim`, shaped to go with x.
Tensor positions_of(const Tensor& x, int64_t dim) {
  std::vector<SymInt> shape(size_t(x.dim()), 1);
  if (x.dim() > 0) shape[size_t(dim)] = x.sym_size(dim);
  return at::arange(x.dim() > 0 ? x.sym_size(dim) : SymInt(1), x.options().dtype(at::kLong)).view_symint(shape);
}

TwoTensors kernel(const Tensor& x, int64_t dim, Str extremum, bool reverse, Str algorithm) {
  dim = check(x, dim, extremum);
  static const auto scan = op<Tensor(const Tensor&, int64_t, Str, bool, bool, Str)>("scan");
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Tensor values = scan.call(x, dim, extremum, false, reverse, algorithm);
  const Tensor before = scan.call(x, dim, extremum, true, reverse, algorithm);
  const Tensor places = positions_of(x, dim);
  const int64_t start = reverse ? places.numel() - 1 : 0;
  Tensor leads = (extremum == "max" ? x > before : x < before) | (places == start);
  if (x.is_floating_point()) leads |= x.isnan() & ~before.isnan();
  // Positions grow in scan order, or shrink: the latest leader's is the extreme one.
  const Tensor led = at::where(leads, places, start);
  return {values, scan.call(led, dim, reverse ? "min" : "max", false, reverse, algorithm)};
}

// ---- Meta

TwoTensors meta(const Tensor& x, int64_t dim, Str extremum, bool, Str algorithm) {
  check(x, dim, extremum);
  check_algorithm(scan::ladder, name, algorithm);
  return {at::empty_symint(x.sym_sizes(), x.options()), at::empty_symint(x.sym_sizes(), x.options().dtype(at::kLong))};
}

// ---- Autograd

Tensor sum_over_runs(const Tensor& grad, const Tensor& indices, int64_t dim, bool reverse) {
  static const auto compact_padded =
      op<TwoTensors(const Tensor&, const Tensor&, const at::Scalar&, Str)>("compact_padded");
  static const auto segment_reduce = op<Tensor(const Tensor&, const Tensor&, Str, bool, Str)>("segment_reduce");
  static const auto unpack = op<Tensor(const Tensor&, const Tensor&, Str)>("compact_backward");
  const auto in_scan_order = [&](const Tensor& x) {
    const Tensor lines = x.movedim(dim, -1);
    return (reverse ? lines.flip(-1) : lines).contiguous();
  };
  const Tensor g = in_scan_order(grad), leads = in_scan_order(indices == positions_of(indices, dim)).flatten();
  const SymInt n = leads.sym_size(0);
  const Tensor all = at::arange(n, indices.options());
  const Tensor starts = std::get<0>(compact_padded.call(all, leads, n, "auto"));
  const Tensor offsets = at::cat({starts, at::full_symint({1}, n, indices.options())});
  const Tensor sums = segment_reduce.call(g.flatten(), offsets, "sum", false, "auto");
  const Tensor result = unpack.call(sums, leads, "auto").view_symint(g.sym_sizes());
  return (reverse ? result.flip(-1) : result).movedim(-1, dim).contiguous();
}

struct IndicesFunction : torch::autograd::Function<IndicesFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, int64_t dim, std::string extremum, bool reverse,
                               std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [values, indices] = call(x, dim, extremum, reverse, algorithm);
    ctx->mark_non_differentiable({indices});
    ctx->save_for_backward({indices});
    ctx->saved_data["dim"] = wrap_dim(name, dim, x.dim());
    ctx->saved_data["reverse"] = reverse;
    return {values, indices};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(5);
    const Tensor& g = grads[0];
    if (!g.defined()) return result;
    const bool alone = g.dim() == 0 || g.sym_numel() == 0;  // one element, or none
    result[0] = alone ? g.clone()
                      : sum_over_runs(g, ctx->get_saved_variables()[0], ctx->saved_data.at("dim").toInt(),
                                      ctx->saved_data.at("reverse").toBool());
    return result;
  }
};

TwoTensors autograd(const Tensor& x, int64_t dim, Str extremum, bool reverse, Str algorithm) {
  const auto result = IndicesFunction::apply(x, dim, std::string(extremum), reverse, std::string(algorithm));
  return {result[0], result[1]};
}

// ---- Autocast: as a scan, in float32

template <c10::DeviceType device, c10::DispatchKey key>
TwoTensors autocast(const Tensor& x, int64_t dim, Str extremum, bool reverse, Str algorithm) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  return call(at::autocast::cached_cast(at::kFloat, x, device), dim, extremum, reverse, algorithm);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  m.def(
      "scan_with_indices(Tensor x, int dim=-1, str op=\"max\", bool reverse=False, str algorithm=\"auto\") -> (Tensor, "
      "Tensor)",
      {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { m.impl(name, &kernel); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { m.impl(name, &kernel); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) { m.impl(name, &meta); }
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) { m.impl(name, &autograd); }
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCPU, m) { m.impl(name, &autocast<at::kCPU, c10::DispatchKey::AutocastCPU>); }
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCUDA, m) {
  m.impl(name, &autocast<at::kCUDA, c10::DispatchKey::AutocastCUDA>);
}

}  // namespace
}  // namespace tp
