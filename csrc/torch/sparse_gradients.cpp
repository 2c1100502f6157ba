// torch_patterns::spmm_transposed and sampled_product: checks, kernels, Meta, derivatives.
//
// Let A(v) be the matrix with the values v. A(v) x, A(v)^T g, and the sampled product g x^T at the entries are
// bilinear. The gradients of each are the two others, and the tangent of each is the sum of itself at either tangent.
// So derivatives of every order need nothing else, and cost O(nnz k).
#include <ATen/LegacyVmapTransforms.h>

#include "torch/spmv.h"

namespace tp {
namespace {

constexpr const char *transposed_name = "spmm_transposed", *sampled_name = "sampled_product";
Pattern pattern(sampled_name, sampled_product::ladder);

#define TP_REST                                                                                           \
  "SymInt rows, SymInt cols, SymInt section_rows=0, Tensor? plan_ptrs=None, Tensor? plan_perm=None, str " \
  "algorithm=\"auto\") -> Tensor"

// A product of a matrix and two operands: values and g, or, for a sampled product, g and x.
template <bool samples>
struct ProductOfTwo {
  static constexpr auto schema =
      samples ? "sampled_product(str format, Tensor[] structure, Tensor g, Tensor x, " TP_REST
              : "spmm_transposed(str format, Tensor[] structure, Tensor values, Tensor g, " TP_REST;
  Str format;
  Tensors structure;
  Tensor first, second;
  SymInt rows, cols, section_rows;
  OptionalTensor plan_ptrs, plan_perm;
  Str algorithm;

  TP_LINEAR(Tensor)
  Bilinear matrix() const { return {format, structure, rows, cols, section_rows, plan_ptrs, plan_perm}; }
  // An operand is read only by the gradient of the other.
  bool keeps(size_t input) const {
    const size_t at = structure.size();
    return input == at ? second.requires_grad() : input != at + 1 || first.requires_grad();
  }
};
using SpmmTransposed = ProductOfTwo<false>;
using SampledProduct = ProductOfTwo<true>;

#undef TP_REST

// The structure, checked along with the operands: a [n] or [m, k], b [l, k].
Structure checked(const char* op, const Bilinear& b, const Named& first, const Named& second) {
  const Structure s{format_of(op, b.format), b.index, b.rows, b.cols, b.section_rows};
  check_structure(op, s);
  check_floats(op, {first, second});
  check_same_device(op, {{"the matrix", &s[0]}, {first.name, &first.tensor}});
  TORCH_CHECK_VALUE(b.plan_ptrs.has_value() == b.plan_perm.has_value(), op, ": plan_ptrs and plan_perm go together");
  if (b.plan_ptrs) check_plan(op, s, false, *b.plan_ptrs, *b.plan_perm);
  return s;
}

void check_shape(const char* op, const Named& x, std::vector<SymInt> shape) {
  TORCH_CHECK_VALUE(x.tensor.sym_sizes() == c10::SymIntArrayRef(shape), op, ": ", x.name, " has shape ",
                    x.tensor.sym_sizes(), ", expected ", c10::SymIntArrayRef(shape));
}

SymInt columns_of(const char* op, const Named& x) {
  TORCH_CHECK_VALUE(x.tensor.dim() == 2, op, ": ", x.name, " must have two dimensions, got shape ",
                    x.tensor.sym_sizes());
  return x.tensor.sym_size(1);
}

// ---- kernels: CPU and CUDA alike

template <>
Tensor SpmmTransposed::kernel() const {
  const Tensor &values = first, &g = second;
  const Structure s = checked(transposed_name, matrix(), {"values", values}, {"g", g});
  check_shape(transposed_name, {"values", values}, {s.entries()});
  check_shape(transposed_name, {"g", g}, {s.rows, columns_of(transposed_name, {"g", g})});
  Tensor y = empty_result({cols, g.sym_size(1)}, g.options());
  if (is_done(y, spmv_csr::ladder, transposed_name, algorithm)) return y;
  const Plan plan = plan_of(transposed_name, s.contiguous(), false, plan_ptrs, plan_perm);
  run_plan(transposed_name, plan, values.contiguous(), g.contiguous(), {}, y, algorithm);
  return y;
}

void run_sampled(const Part& part, const Tensor& g, const Tensor& x, Tensor out, Str algorithm) {
  if (out.numel() == 0) return check_algorithm(sampled_product::ladder, sampled_name, algorithm);
  sparse::SampledArgs args{};
  args.op = sampled_name;
  args.row_idx = data_or_null(part.row_idx);
  args.col_idx = data_or_null(part.col_idx);
  args.ptrs = data_or_null(part.ptrs);
  args.row_nnz = data_or_null(part.row_nnz);
  args.entries = out.numel();
  args.rows = g.size(0);
  args.cols = x.size(0);
  args.k = x.size(1);
  args.gy = data_or_null(g);
  args.x = data_or_null(x);
  args.out = out.mutable_data_ptr();
  args.dtype = dtype_of_tensor(sampled_name, x);
  args.long_index = part.col_idx.scalar_type() == at::kLong;
  run(sampled_product::ladder, sampled_product::choose, sampled_name, algorithm, x, args);
}

template <>
Tensor SampledProduct::kernel() const {
  const Tensor &g = first, &x = second;
  const Structure given = checked(sampled_name, matrix(), {"g", g}, {"x", x});
  const SymInt k = columns_of(sampled_name, {"g", g});
  check_shape(sampled_name, {"g", g}, {given.rows, k});
  check_shape(sampled_name, {"x", x}, {given.cols, k});
  Tensor out = empty_result({given.entries()}, x.options());
  if (is_done(out, sampled_product::ladder, sampled_name, algorithm)) return out;
  const Structure s = given.contiguous();
  const Tensor gy = g.contiguous(), in = x.contiguous();
  int64_t done = 0;
  for (const Part& part : info_of(s.format).parts(s)) {
    const int64_t n = part.col_idx.numel();
    const auto [rows, cols] = part.transposed ? std::tie(in, gy) : std::tie(gy, in);
    run_sampled(part, rows, cols, out.narrow(0, done, n), algorithm);
    done += n;
  }
  return out;
}

// ---- derivatives

template <>
Tensors SpmmTransposed::vjp(const Backward& b) const {
  const size_t at = structure.size();
  Tensors found(at + 2);
  if (b.wants(at)) found[at] = matrix().sampled(second, b.grad());
  if (b.wants(at + 1)) found[at + 1] = matrix().product(first, b.grad());
  return found;
}

template <>
Tensors SampledProduct::vjp(const Backward& b) const {
  const size_t at = structure.size();
  Tensors found(at + 2);
  if (b.wants(at)) found[at] = matrix().product(b.grad(), second);
  if (b.wants(at + 1)) found[at + 1] = matrix().transposed(b.grad(), first);
  return found;
}

// ---- batched gradients

// autograd.grad(is_grads_batched=True) and jacobian(vectorize=True) batch by their own dispatch key. For it, torch
// loops over the samples of any operator, except of those that take lists of tensors.
template <class Op>
void loop_over_batch(const c10::OperatorHandle&, Stack* stack) {
  on_stack(stack, count_arguments(Op::schema), [](Rules::Args args) {
    Op op = unboxed<Op>(args);
    const auto views = at::MultiBatchVmapTransform::logicalToPhysical(Tensors{op.first, op.second});
    const int64_t dims = views[0].numBatchDims();
    const auto batch = views[0].tensor().sizes().slice(0, size_t(dims)).vec();
    const Tensor a = views[0].tensor().flatten(0, dims - 1), b = views[1].tensor().flatten(0, dims - 1);
    TORCH_CHECK(a.size(0) > 0, name_of(Op::schema), ": batched gradients of no samples are not supported");
    Tensors samples;
    for (int64_t i = 0; i < a.size(0); ++i) {
      op.first = a.select(0, i), op.second = b.select(0, i);
      samples.push_back(call(op));
    }
    return views[0].getPhysicalToLogicalMap().apply(at::stack(samples).unflatten(0, batch));
  });
}

template <class Op>
void define_with_batches(torch::Library& m) {
  define<Op>(m);
  implement<&loop_over_batch<Op>>(m, name_of(Op::schema), c10::DispatchKey::Batched);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  define_with_batches<SpmmTransposed>(m);
  define_with_batches<SampledProduct>(m);
}

}  // namespace

Tensor Bilinear::transposed(const Tensor& values, const Tensor& g) const {
  return call(SpmmTransposed{format, index, values, g, rows, cols, section_rows, plan_ptrs, plan_perm, "auto"});
}

Tensor Bilinear::sampled(const Tensor& g, const Tensor& x) const {
  return call(SampledProduct{format, index, g, x, rows, cols, section_rows, plan_ptrs, plan_perm, "auto"});
}

// The arguments for the format's operator: its fields with the values among them, and the rest.
Tensor Bilinear::product(const Tensor& values, const Tensor& x) const {
  const Format f = format_of(sampled_name, format);
  const auto& info = info_of(f);
  const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(("torch_patterns::spmm_" + std::string(format)).c_str(), "");
  Stack stack;
  const SymInt n = info.values.size() > 1 ? index[info.values[0] - 1].sym_numel() : values.sym_numel();
  for (size_t field = 0, next = 0; field < info.fields.size(); ++field) {
    if (!info.is_value(field)) {
      stack.emplace_back(index[next++]);
    } else if (field == info.values[0]) {
      stack.emplace_back(values.narrow_symint(0, 0, n).view_symint(index[next - 1].sym_sizes()));
    } else {
      stack.emplace_back(values.narrow_symint(0, n, values.sym_numel() - n));
    }
  }
  if (info.has(FormatInfo::in_sections)) stack.emplace_back(section_rows);
  stack.emplace_back(x);
  if (!info.has(FormatInfo::gives_rows)) stack.emplace_back(rows);
  stack.emplace_back(cols);
  stack.emplace_back();  // y
  const bool plan = plan_ptrs && f != Format::csc;
  stack.push_back(plan ? box(plan_ptrs) : IValue());
  stack.push_back(plan ? box(plan_perm) : IValue());
  stack.emplace_back(false);
  if (info.has(FormatInfo::has_coordinates)) stack.emplace_back(false);
  stack.emplace_back("auto");
  handle.callBoxed(stack);
  return stack[0].toTensor();
}

void run_plan(const char* op, const Plan& plan, const Tensor& values, const Tensor& x, const Tensor& y0, Tensor& y,
              Str algorithm) {
  sparse::CsrArgs args{};
  args.op = op;
  args.values = values.const_data_ptr();
  args.ptrs = plan.ptrs.const_data_ptr();
  args.col_idx = plan.other.const_data_ptr();
  args.perm = data_or_null(plan.perm);
  args.stages = data_or_null(plan.stages);
  args.origin = data_or_null(plan.origin);
  args.entries = values.numel();
  args.rows = y.size(0);
  args.cols = x.size(0);
  args.k = y.dim() == 2 ? y.size(1) : 1;
  args.x = x.const_data_ptr();
  args.y0 = data_or_null(y0);
  args.y = y.mutable_data_ptr();
  args.dtype = dtype_of_tensor(op, x);
  args.long_index = plan.ptrs.scalar_type() == at::kLong;
  run(spmv_csr::ladder, spmv_csr::choose, "spmv_csr", algorithm, x, args);
}

}  // namespace tp
