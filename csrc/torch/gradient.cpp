#include "torch/gradient.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorSubclassLikeUtils.h>

#include "torch/reduce.h"

namespace tp {

Tensor reduce_to(const Tensor& g, SymIntArrayRef sizes) {
  const size_t extra = size_t(g.dim()) - sizes.size();
  std::vector<int64_t> dims;
  for (size_t d = 0; d < size_t(g.dim()); ++d) {
    const bool broadcast = d < extra || (TORCH_GUARD_OR_FALSE(sizes[d - extra].sym_eq(1)) &&
                                         !TORCH_GUARD_OR_FALSE(g.sym_size(int64_t(d)).sym_eq(1)));
    if (broadcast) dims.push_back(int64_t(d));
  }
  if (dims.empty()) return g;
  return call(Reduce{g, dims, "sum", true, "auto"}).view_symint(sizes);
}

bool is_plain(std::initializer_list<Tensor> tensors) {
  if (at::GradMode::is_enabled()) return false;
  for (const Tensor& t : tensors) {
    if (!t.defined()) continue;
    if (t.is_meta() || t._fw_grad(0).defined() || at::isTensorSubclassLike(t)) return false;
  }
  return true;
}

at::ScalarType wide_dtype(const Tensor& x) { return at::toOpMathType(x.scalar_type()); }

}  // namespace tp
