// Autograd and Autocast of spmv_<format> and spmm_<format>, for all formats by the same boxed kernels.
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>

#include <algorithm>

#include "torch/permutation.h"
#include "torch/spmv.h"

namespace tp {
namespace {

using c10::IValue;
using torch::jit::Stack;

struct Call {
  c10::OperatorHandle op;
  Stack args;

  Tensor operator()() const {
    Stack stack = args;
    op.callBoxed(stack);
    return stack[0].toTensor();
  }
};

// The arguments are those of `call`, where autograd finds them: dtypes are those of the result.
struct ProductFunction : torch::autograd::Function<ProductFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& values, const Tensor& x, const OptionalTensor& tail,
                        const OptionalTensor& y, const Call& call) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    const Product p(call.op, call.args);
    const Structure& s = p.structure;
    ctx->saved_data["matrix"] = p.matrix;
    ctx->saved_data["tail"] = tail.has_value();
    ctx->saved_data["y"] = y.has_value();
    ctx->saved_data["format"] = std::string(info_of(s.format).name);
    ctx->saved_data["rows"] = s.rows;
    ctx->saved_data["cols"] = s.cols;
    ctx->saved_data["section_rows"] = s.section_rows;
    const bool plan = p.plan_ptrs && !p.plan_by_rows();  // of the transposed product
    variable_list saved{values, x, tail.value_or(Tensor()), plan ? *p.plan_ptrs : Tensor(),
                        plan ? *p.plan_perm : Tensor()};
    saved.insert(saved.end(), s.index.begin(), s.index.end());
    ctx->save_for_backward(saved);
    return call();
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(5);
    if (!grads[0].defined()) return result;
    const auto saved = ctx->get_saved_variables();
    const bool matrix = ctx->saved_data.at("matrix").toBool(), tail = ctx->saved_data.at("tail").toBool();
    const Tensor g = matrix ? grads[0] : grads[0].unsqueeze(-1), x = matrix ? saved[1] : saved[1].unsqueeze(-1);
    const Tensor &values = saved[0], &more = saved[2];
    const Bilinear b{ctx->saved_data.at("format").toStringRef(),
                     {saved.begin() + 5, saved.end()},
                     ctx->saved_data.at("rows").toSymInt(),
                     ctx->saved_data.at("cols").toSymInt(),
                     ctx->saved_data.at("section_rows").toSymInt(),
                     saved[3].defined() ? OptionalTensor(saved[3]) : OptionalTensor(),
                     saved[4].defined() ? OptionalTensor(saved[4]) : OptionalTensor()};
    if (ctx->needs_input_grad(0) || (tail && ctx->needs_input_grad(2))) {
      const Tensor sampled = b.sampled(g, x);
      const SymInt n = values.sym_numel();
      result[0] = sampled.narrow_symint(0, 0, n).view_symint(values.sym_sizes());
      if (tail) result[2] = sampled.narrow_symint(0, n, more.sym_size(0));
    }
    if (ctx->needs_input_grad(1)) {
      const Tensor flat = values.reshape(-1);
      const Tensor gx = b.transposed(tail ? at::cat({flat, more}) : flat, g);
      result[1] = matrix ? gx : gx.squeeze(-1);
    }
    if (ctx->saved_data.at("y").toBool()) result[3] = grads[0];
    return result;
  }
};

void product_autograd(const c10::OperatorHandle& op, Stack* stack) {
  const size_t n = op.schema().arguments().size();
  const auto args = torch::jit::last(*stack, n);
  const bool wanted = std::any_of(args.begin(), args.end(), [](const IValue& v) {
    return v.isTensor() && v.toTensor().defined() && needs_gradient(v.toTensor());
  });
  if (!wanted) {
    at::AutoDispatchBelowADInplaceOrView below;
    return op.callBoxed(stack);
  }
  on_stack(op, stack, [&](at::ArrayRef<IValue> given) {
    const Product p(op, given);
    const auto type = p.check();
    const auto& info = info_of(p.structure.format);
    const Places at(p.structure.format);
    Call call{op, given.vec()};
    const auto promoted = [&](size_t i) {
      call.args[i] = call.args[i].toTensor().to(type);
      return call.args[i].toTensor();
    };
    const Tensor values = promoted(info.values[0]), x = promoted(at.x);
    const auto tail = info.values.size() > 1 ? OptionalTensor(promoted(info.values[1])) : OptionalTensor();
    const auto y = p.y ? OptionalTensor(promoted(at.y)) : OptionalTensor();
    return ProductFunction::apply(values, x, tail, y, call);
  });
}

// ---- Autocast: sums run in and return float32

template <c10::DeviceType device, c10::DispatchKey key>
void product_autocast(const c10::OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const size_t n = op.schema().arguments().size();
  for (size_t i = stack->size() - n; i < stack->size(); ++i) {
    IValue& v = (*stack)[i];
    if (v.isTensor() && v.toTensor().defined() && v.toTensor().is_floating_point())
      v = at::autocast::cached_cast(at::kFloat, v.toTensor(), device);
  }
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) { register_all<boxed<product_autograd>>(m); }
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCPU, m) {
  register_all<boxed<product_autocast<at::kCPU, c10::DispatchKey::AutocastCPU>>>(m);
}
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCUDA, m) {
  register_all<boxed<product_autocast<at::kCUDA, c10::DispatchKey::AutocastCUDA>>>(m);
}

}  // namespace
}  // namespace tp
