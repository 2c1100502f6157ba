// torch_patterns::spmm_transposed and sampled_product: schema, checks, Meta, Autograd.
//
// With A(v) the matrix of the values v: A(v) x, A(v)^T g, and the sampled product g x^T at the entries, are bilinear,
// and the derivatives of each are the two others. So no order of derivative needs anything else, or more than O(nnz k).
#include <torch/autograd.h>
#include <torch/library.h>

#include "torch/spmv.h"

namespace tp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char *transposed_name = "spmm_transposed", *sampled_name = "sampled_product";
Pattern pattern(sampled_name, sampled_product::ladder);

using Operator = Tensor(Str, at::TensorList, const Tensor&, const Tensor&, SymInt, SymInt, SymInt,
                        const OptionalTensor&, const OptionalTensor&, Str);

Tensor call(const char* name, const Bilinear& b, const Tensor& first, const Tensor& second, Str algorithm) {
  static const auto transposed = op<Operator>(transposed_name), sampled = op<Operator>(sampled_name);
  const auto& handle = name == transposed_name ? transposed : sampled;
  return handle.call(b.format, b.index, first, second, b.rows, b.cols, b.section_rows, b.plan_ptrs, b.plan_perm,
                     algorithm);
}

// The structure, checked along with the operands: a [n] or [m, k], b [l, k].
Structure check(const char* op, const Bilinear& b, const Named& first, const Named& second) {
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

Structure check_transposed(const Bilinear& b, const Tensor& values, const Tensor& g) {
  const Structure s = check(transposed_name, b, {"values", values}, {"g", g});
  check_shape(transposed_name, {"values", values}, {s.entries()});
  check_shape(transposed_name, {"g", g}, {s.rows, columns_of(transposed_name, {"g", g})});
  return s;
}

Structure check_sampled(const Bilinear& b, const Tensor& g, const Tensor& x) {
  const Structure s = check(sampled_name, b, {"g", g}, {"x", x});
  const SymInt k = columns_of(sampled_name, {"g", g});
  check_shape(sampled_name, {"g", g}, {s.rows, k});
  check_shape(sampled_name, {"x", x}, {s.cols, k});
  return s;
}

// ---- kernels: CPU and CUDA alike

const void* pointer(const Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }

Tensor transposed_kernel(Str format, at::TensorList index, const Tensor& values, const Tensor& g, SymInt rows,
                         SymInt cols, SymInt section_rows, const OptionalTensor& plan_ptrs,
                         const OptionalTensor& plan_perm, Str algorithm) {
  const Bilinear b{std::string(format), index.vec(), rows, cols, section_rows, plan_ptrs, plan_perm};
  const Structure s = check_transposed(b, values, g).contiguous();
  Tensor y = empty_result({cols.expect_int(), g.size(1)}, g.options());
  if (y.numel() == 0) {
    check_algorithm(spmv_csr::ladder, transposed_name, algorithm);
  } else {
    const Plan plan = plan_of(transposed_name, s, false, plan_ptrs, plan_perm);
    run_plan(transposed_name, plan, values.contiguous(), g.contiguous(), {}, y, algorithm);
  }
  return y;
}

// Where the entries of a part of a matrix are, for a sampled product.
struct Part {
  Tensor row_idx, col_idx, ptrs, row_nnz;
};

void run_sampled(const Part& part, const Tensor& g, const Tensor& x, Tensor out, Str algorithm) {
  if (out.numel() == 0) return check_algorithm(sampled_product::ladder, sampled_name, algorithm);
  sparse::SampledArgs args{};
  args.op = sampled_name;
  args.row_idx = pointer(part.row_idx);
  args.col_idx = pointer(part.col_idx);
  args.ptrs = pointer(part.ptrs);
  args.row_nnz = pointer(part.row_nnz);
  args.entries = out.numel();
  args.rows = g.size(0);
  args.cols = x.size(0);
  args.k = x.size(1);
  args.gy = pointer(g);
  args.x = pointer(x);
  args.out = out.mutable_data_ptr();
  args.dtype = dtype_of_tensor(sampled_name, x);
  args.long_index = part.col_idx.scalar_type() == at::kLong;
  run(sampled_product::ladder, sampled_product::choose, sampled_name, algorithm, x, args);
}

Tensor sampled_kernel(Str format, at::TensorList index, const Tensor& given_g, const Tensor& given_x, SymInt rows,
                      SymInt cols, SymInt section_rows, const OptionalTensor& plan_ptrs,
                      const OptionalTensor& plan_perm, Str algorithm) {
  const Bilinear b{std::string(format), index.vec(), rows, cols, section_rows, plan_ptrs, plan_perm};
  const Structure s = check_sampled(b, given_g, given_x).contiguous();
  const Tensor g = given_g.contiguous(), x = given_x.contiguous();
  const int64_t n = s.entries().expect_int(), padded = s.columns().numel();
  Tensor out = empty_result({n}, x.options());
  switch (s.format) {
    case Format::coo:
      run_sampled({s[0], s[1], {}, {}}, g, x, out, algorithm);
      break;
    case Format::csr:
      run_sampled({{}, s[1], s[0], {}}, g, x, out, algorithm);
      break;
    case Format::csc:  // of the transpose, rows are columns
      run_sampled({{}, s[1], s[0], {}}, x, g, out, algorithm);
      break;
    case Format::hyb:
      run_sampled({s[2], s[3], {}, {}}, g, x, out.narrow(0, padded, n - padded), algorithm);
      [[fallthrough]];
    case Format::ell:
      run_sampled({{}, s[1], {}, s[0]}, g, x, out.narrow(0, 0, padded), algorithm);
      break;
    case Format::jds:
    case Format::sell:
    case Format::blocked: {
      const auto [row_idx, col_idx] = coordinates(s);
      run_sampled({row_idx, col_idx, {}, {}}, g, x, out, algorithm);
      break;
    }
  }
  return out;
}

// ---- Meta

Tensor transposed_meta(Str format, at::TensorList index, const Tensor& values, const Tensor& g, SymInt rows,
                       SymInt cols, SymInt section_rows, const OptionalTensor& plan_ptrs,
                       const OptionalTensor& plan_perm, Str algorithm) {
  check_transposed({std::string(format), index.vec(), rows, cols, section_rows, plan_ptrs, plan_perm}, values, g);
  check_algorithm(spmv_csr::ladder, transposed_name, algorithm);
  return at::empty_symint({cols, g.sym_size(1)}, g.options());
}

Tensor sampled_meta(Str format, at::TensorList index, const Tensor& g, const Tensor& x, SymInt rows, SymInt cols,
                    SymInt section_rows, const OptionalTensor& plan_ptrs, const OptionalTensor& plan_perm,
                    Str algorithm) {
  const Bilinear b{std::string(format), index.vec(), rows, cols, section_rows, plan_ptrs, plan_perm};
  const Structure s = check_sampled(b, g, x);
  check_algorithm(sampled_product::ladder, sampled_name, algorithm);
  return at::empty_symint({s.entries()}, x.options());
}

// ---- Autograd

// Both operators: of (values, g), or of (g, x).
struct BilinearFunction : torch::autograd::Function<BilinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& first, const Tensor& second, const Bilinear& b,
                        bool transposed, std::string algorithm) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["transposed"] = transposed;
    ctx->saved_data["format"] = b.format;
    ctx->saved_data["rows"] = b.rows;
    ctx->saved_data["cols"] = b.cols;
    ctx->saved_data["section_rows"] = b.section_rows;
    variable_list saved{first, second, b.plan_ptrs.value_or(Tensor()), b.plan_perm.value_or(Tensor())};
    saved.insert(saved.end(), b.index.begin(), b.index.end());
    ctx->save_for_backward(saved);
    at::AutoDispatchBelowADInplaceOrView below;
    return call(transposed ? transposed_name : sampled_name, b, first, second, algorithm);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(5);
    const Tensor& h = grads[0];
    if (!h.defined()) return result;
    const auto saved = ctx->get_saved_variables();
    const auto optional = [](const Tensor& t) { return t.defined() ? OptionalTensor(t) : OptionalTensor(); };
    const Bilinear b{ctx->saved_data.at("format").toStringRef(),
                     {saved.begin() + 4, saved.end()},
                     ctx->saved_data.at("rows").toSymInt(),
                     ctx->saved_data.at("cols").toSymInt(),
                     ctx->saved_data.at("section_rows").toSymInt(),
                     optional(saved[2]),
                     optional(saved[3])};
    const Tensor &first = saved[0], &second = saved[1];
    const bool transposed = ctx->saved_data.at("transposed").toBool();
    if (ctx->needs_input_grad(0)) result[0] = transposed ? b.sampled(second, h) : b.product(h, second);
    if (ctx->needs_input_grad(1)) result[1] = transposed ? b.product(first, h) : b.transposed(h, first);
    return result;
  }
};

template <bool transposed>
Tensor autograd(Str format, at::TensorList index, const Tensor& first, const Tensor& second, SymInt rows, SymInt cols,
                SymInt section_rows, const OptionalTensor& plan_ptrs, const OptionalTensor& plan_perm, Str algorithm) {
  const Bilinear b{std::string(format), index.vec(), rows, cols, section_rows, plan_ptrs, plan_perm};
  return BilinearFunction::apply(first, second, b, transposed, std::string(algorithm));
}

void register_kernels(torch::Library& m) {
  m.impl(transposed_name, &transposed_kernel);
  m.impl(sampled_name, &sampled_kernel);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  const std::string rest =
      "SymInt rows, SymInt cols, SymInt section_rows=0, Tensor? plan_ptrs=None, Tensor? plan_perm=None, str "
      "algorithm=\"auto\") -> Tensor";
  const auto define = [&](const std::string& begin) { m.def((begin + rest).c_str(), {at::Tag::pt2_compliant_tag}); };
  define("spmm_transposed(str format, Tensor[] structure, Tensor values, Tensor g, ");
  define("sampled_product(str format, Tensor[] structure, Tensor g, Tensor x, ");
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) {
  m.impl(transposed_name, &transposed_meta);
  m.impl(sampled_name, &sampled_meta);
}
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) {
  m.impl(transposed_name, &autograd<true>);
  m.impl(sampled_name, &autograd<false>);
}

}  // namespace

Tensor Bilinear::transposed(const Tensor& values, const Tensor& g) const {
  return call(transposed_name, *this, values, g, "auto");
}

Tensor Bilinear::sampled(const Tensor& g, const Tensor& x) const { return call(sampled_name, *this, g, x, "auto"); }

// By the operator of the format: its fields with the values among them, and so on.
Tensor Bilinear::product(const Tensor& values, const Tensor& x) const {
  const Format f = format_of(sampled_name, format);
  const auto& info = info_of(f);
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(("torch_patterns::spmm_" + format).c_str(), "");
  torch::jit::Stack stack;
  const SymInt n = f == Format::hyb ? index[1].sym_numel() : values.sym_numel();
  for (size_t field = 0, next = 0; field < info.fields.size(); ++field) {
    if (!info.is_value(field)) {
      stack.emplace_back(index[next++]);
    } else if (field == info.values[0]) {
      stack.emplace_back(values.narrow_symint(0, 0, n).view_symint(
          index[f == Format::hyb || f == Format::ell ? 1 : next - 1].sym_sizes()));
    } else {
      stack.emplace_back(values.narrow_symint(0, n, values.sym_numel() - n));
    }
  }
  if (f == Format::sell) stack.emplace_back(section_rows);
  stack.emplace_back(x);
  if (!info.gives_rows) stack.emplace_back(rows);
  stack.emplace_back(cols);
  stack.emplace_back();  // y
  const bool plan = plan_ptrs && f != Format::csc;
  stack.push_back(plan ? c10::IValue(*plan_ptrs) : c10::IValue());
  stack.push_back(plan ? c10::IValue(*plan_perm) : c10::IValue());
  stack.emplace_back(false);
  if (f == Format::coo || f == Format::hyb) stack.emplace_back(false);
  stack.emplace_back("auto");
  handle.callBoxed(stack);
  return stack[0].toTensor();
}

void run_plan(const char* op, const Plan& plan, const Tensor& values, const Tensor& x, const Tensor& y0, Tensor& y,
              Str algorithm) {
  sparse::Args args{};
  args.op = op;
  args.values = values.const_data_ptr();
  args.ptrs = plan.ptrs.const_data_ptr();
  args.col_idx = plan.other.const_data_ptr();
  args.perm = pointer(plan.perm);
  args.stages = pointer(plan.stages);
  args.origin = pointer(plan.origin);
  args.entries = values.numel();
  args.rows = y.size(0);
  args.cols = x.size(0);
  args.k = y.dim() == 2 ? y.size(1) : 1;
  args.x = x.const_data_ptr();
  args.y0 = y0.defined() ? y0.const_data_ptr() : nullptr;
  args.y = y.mutable_data_ptr();
  args.dtype = dtype_of_tensor(op, x);
  args.long_index = plan.ptrs.scalar_type() == at::kLong;
  run(spmv_csr::ladder, spmv_csr::choose, "spmv_csr", algorithm, x, args);
}

}  // namespace tp
