// The derivatives of spmv_<format> and spmm_<format>; the same rules hold for all formats.
//
// y = A(v) x + y0 is linear in the values v, in x and in y0. Reverse mode: the gradient of v is the sampled product of
// g and x, that of x is the transposed product A(v)^T g, and that of y0 is g. Forward mode: y' = A(v') x + A(v) x' +
// y0', by the operator itself. sparse_gradients.cpp has those two products; the three are closed under differentiation.
#include <algorithm>

#include "torch/spmv.h"

namespace tp {
namespace {

// The index of x among the tensors of a call; y and the plan follow it.
size_t tensor_x(Format format) { return info_of(format).fields.size(); }

Format format_of_operator(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return format_of(name.c_str(), Str(name).substr(name.rfind('_') + 1));
}

Tensors product_vjp(const c10::OperatorHandle& op, Rules::Args args, const Backward& b) {
  const Product p(op, args, &b);
  const Structure& s = p.structure;
  const auto& info = info_of(s.format);
  const size_t first = info.values[0], tail = info.values.back(), x = tensor_x(s.format);
  const bool plan = p.plan_ptrs && !p.plan_by_rows();  // whether the plan is that of the transposed product
  const Bilinear a{info.name,
                   s.index,
                   s.rows,
                   s.cols,
                   s.section_rows,
                   plan ? p.plan_ptrs : OptionalTensor(),
                   plan ? p.plan_perm : OptionalTensor()};
  const Tensor& grad = b.grad();
  const auto type = grad.scalar_type();
  const auto columns = [&](const Tensor& t) { return p.matrix ? t : t.unsqueeze(-1); };
  Tensors found(x + 2);
  if (b.wants(first) || b.wants(tail)) {
    const Tensor sampled = a.sampled(columns(grad), columns(p.x.to(type)));
    const SymInt n = s.beside_values().sym_numel();
    found[first] = sampled.narrow_symint(0, 0, n).view_symint(s.beside_values().sym_sizes());
    if (tail != first) found[tail] = sampled.narrow_symint(0, n, sampled.sym_size(0) - n);
  }
  if (b.wants(x)) {
    Tensors flat;
    for (const Tensor& v : p.values) flat.push_back(v.to(type).flatten());
    const Tensor g = a.transposed(flat.size() == 1 ? flat[0] : at::cat(flat), columns(grad));
    found[x] = p.matrix ? g : g.squeeze(-1);
  }
  if (p.y || b.wants(x + 1)) found[x + 1] = grad;
  return found;
}

Tensors product_jvp(const c10::OperatorHandle& op, Rules::Args args, const Forward& f) {
  const Product p(op, args);
  const auto& info = info_of(p.structure.format);
  const ArgumentPositions at(p.structure.format);
  const size_t first = info.values[0], tail = info.values.back(), x = tensor_x(p.structure.format);
  const auto type = f.output().scalar_type();
  const auto multiply = [&](const Tensors& values, const Tensor& x, const Tensor& y) {
    Stack stack(args.begin(), args.end());
    for (size_t i = 0; i < values.size(); ++i) stack[info.values[i]] = values[i].to(type);
    stack[at.x] = x.to(type);
    stack[at.y] = y.defined() ? IValue(y) : IValue();
    stack[at.validate] = false;
    op.callBoxed(stack);
    return stack[0].toTensor();
  };
  const bool of_values = f.tangent(first).defined() || f.tangent(tail).defined();
  Tensor sum = f.tangent(x + 1);
  if (f.tangent(x).defined()) sum = multiply(p.values, f.tangent(x), sum);
  if (of_values) {
    Tensors tangents;
    for (const size_t i : info.values) tangents.push_back(f.tangent_or_zero(i));
    sum = multiply(tangents, p.x, sum);
  }
  return {of_values || f.tangent(x).defined() ? sum : sum.to(type, /*non_blocking=*/false, /*copy=*/true)};
}

// The gradient of the values needs x, and the gradient of x needs the values.
bool product_keeps(const c10::OperatorHandle& op, Rules::Args args, size_t input) {
  const Format format = format_of_operator(op);
  const auto& info = info_of(format);
  const size_t x = tensor_x(format);
  if (info.is_value(input)) return args[ArgumentPositions(format).x].toTensor().requires_grad();
  if (input == x) {
    return std::any_of(info.values.begin(), info.values.end(),
                       [&](size_t i) { return args[i].toTensor().requires_grad(); });
  }
  return input < x || (input > x + 1 && format != Format::csc);
}

bool product_keeps_output(const c10::OperatorHandle&, Rules::Args, size_t) { return false; }

}  // namespace

const Rules product_rules = {product_vjp, product_jvp, product_keeps, product_keeps_output};

}  // namespace tp
