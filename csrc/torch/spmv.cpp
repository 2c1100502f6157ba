// torch_patterns::spmv_<format> and spmm_<format> for all formats: schema, checks, kernels, Meta.
//
// All of them share boxed kernels, because they differ only in their first tensors. The kernels find their arguments on
// the stack by the table of formats, in this order: the fields of the container, x, rows (only if the fields do not
// imply the number of rows), cols, y, plan_ptrs, plan_perm, validate, row_sorted (only for formats with coordinates),
// algorithm.
//
// The derivatives are in spmv_autograd.cpp.
#include "torch/spmv.h"

#include <cstring>

namespace tp {
namespace {

Pattern patterns_of_products[] = {
#define FORMAT(name, ...) {"spmv_" #name, spmv_##name::ladder},
#include "sparse/formats.def"
#undef FORMAT
};

// Calls f(ladder, choose, name, Args()) for a format.
template <class F>
void with_ladder(Format format, F f) {
  switch (format) {
#define FORMAT(name, ...) \
  case Format::name:      \
    return f(spmv_##name::ladder, spmv_##name::choose, "spmv_" #name, spmv_##name::Args{});
#include "sparse/formats.def"
#undef FORMAT
  }
}

// ---- arguments

OptionalTensor optional_tensor(const IValue& v) {
  return v.isNone() || !v.toTensor().defined() ? OptionalTensor() : OptionalTensor(v.toTensor());
}

}  // namespace

// Takes the arguments of a call apart, and checks as much of their shapes as that needs.
Product::Product(const c10::OperatorHandle& handle, Rules::Args args, const Backward* b) {
  op = std::strchr(handle.schema().name().c_str(), ':') + 2;
  matrix = op[3] == 'm';
  Structure& s = structure;
  s.format = format_of(op, op + std::strlen("spmv_"));
  const auto& info = info_of(s.format);
  const ArgumentPositions at(s.format);
  s.index.reserve(info.index.size());
  values.reserve(info.values.size());
  for (size_t i = 0; i < info.fields.size(); ++i) {
    (info.is_value(i) ? values : s.index).push_back(args[i].toTensor());
  }
  x = args[at.x].toTensor();
  const auto x_sizes = b ? b->sizes(info.fields.size()) : x.sym_sizes();
  TORCH_CHECK_VALUE(x_sizes.size() == (matrix ? 2 : 1), op, ": x must have ",
                    matrix ? "the shape [cols, k]" : "one dimension", ", got shape ", x_sizes);
  s.cols = x_sizes[0];
  if (at.section_rows > 0) s.section_rows = args[at.section_rows].toSymInt();
  if (at.rows > 0) {
    s.rows = args[at.rows].toSymInt();
  } else {
    const bool pointers = info.fields[0].kind == FieldKind::pointers;
    TORCH_CHECK_VALUE(s[0].dim() == 1 && (!pointers || s[0].sym_size(0) > 0), op, ": ", info.fields[0].name,
                      " must have one dimension", pointers ? " and one element at least" : "", ", got shape ",
                      s[0].sym_sizes());
    s.rows = s[0].sym_size(0) - (pointers ? 1 : 0);
  }
  if (!args[at.cols].isNone()) {
    const SymInt cols = args[at.cols].toSymInt();
    TORCH_CHECK_VALUE(cols == s.cols, op, ": x has ", s.cols, " rows, the matrix ", cols, " columns");
  }
  y = optional_tensor(args[at.y]);
  plan_ptrs = optional_tensor(args[at.plan]);
  plan_perm = optional_tensor(args[at.plan + 1]);
  validate = args[at.validate].toBool();
  sorted = at.sorted > 0 && args[at.sorted].toBool();
  algorithm = args[at.algorithm].toStringView();
}

at::ScalarType Product::dtype() const {
  auto type = c10::promoteTypes(values[0].scalar_type(), x.scalar_type());
  if (values.size() > 1) type = c10::promoteTypes(type, values[1].scalar_type());
  return y ? c10::promoteTypes(type, y->scalar_type()) : type;
}

at::ScalarType Product::check() const {
  check_structure(op, structure);
  const auto& info = info_of(structure.format);
  const char* const first = info.fields[0].name;
  for (size_t i = 0; i < values.size(); ++i) {
    const Tensor& beside = structure.beside_values(i);
    const char* name = info.fields[info.values[i]].name;
    TORCH_CHECK_VALUE(values[i].sym_sizes() == beside.sym_sizes(), op, ": ", name, " has shape ", values[i].sym_sizes(),
                      ", its indices ", beside.sym_sizes());
    check_same_device(op, {{first, &structure[0]}, {name, &values[i]}});
  }
  check_same_device(op, {{first, &structure[0]}, {"x", &x}});
  if (y) {
    check_same_device(op, {{first, &structure[0]}, {"y", &*y}});
    TORCH_CHECK_VALUE(y->sym_sizes() == c10::SymIntArrayRef(shape()), op, ": y has shape ", y->sym_sizes(),
                      ", the product ", c10::SymIntArrayRef(shape()));
  }
  TORCH_CHECK_VALUE(plan_ptrs.has_value() == plan_perm.has_value(), op, ": plan_ptrs and plan_perm go together");
  if (plan_ptrs) check_plan(op, structure, plan_by_rows(), *plan_ptrs, *plan_perm);
  const auto type = dtype();
  TORCH_CHECK_TYPE(type == at::kInt || type == at::kLong || type == at::kHalf || type == at::kBFloat16 ||
                       type == at::kFloat || type == at::kDouble,
                   op, ": values of ", values[0].scalar_type(), " times x of ", x.scalar_type(),
                   y ? std::string(" plus y of ") + c10::toString(y->scalar_type()) : "",
                   " is not supported; int32, int64, float16, bfloat16, float32 and float64 are");
  return type;
}

namespace {

// ---- kernels, the same for CPU and CUDA

Tensor cast(Tensor x, at::ScalarType type) {
  if (x.scalar_type() != type) x = x.to(type);
  if (!x.is_contiguous()) x = x.contiguous();
  return x;
}

// Whether the requested rung adds by atomics, and so in an undefined order.
bool scatters(const Product& p) {
  if (p.algorithm == "auto") return false;
  bool found = false;
  with_ladder(p.structure.format, [&](const auto& ladder, auto, const char* name, auto) {
    translate_errors([&] { found = find(ladder, name, p.algorithm, p.x.is_cuda()).traits.has(float_atomics); });
  });
  return found;
}

// Sorts coordinates by row on the device, because all deterministic rungs there need sorted rows: a COO by a
// permutation, the tail of a HYB itself. A kernel could not find out in time whether they are sorted already, so the
// caller says so (row_sorted). On the host, the rungs check it themselves.
void sort_coordinates(const Product& p, Structure& s, Tensors& values, Stored& stored) {
  const size_t at = s.index.size() - 2;
  const Tensor rows = s[at];
  if (p.sorted || !rows.is_cuda() || rows.size(0) == 0 || scatters(p)) return;
  const Tensor perm = order_by(rows, s.rows);
  if (values.size() == 1) {
    stored.perm = perm;
    return;
  }
  for (Tensor* t : {&s.index[at], &s.index[at + 1], &values.back()}) *t = t->index_select(0, perm);
  stored.row_sorted = true;
}

// Computes all these operators.
Tensor run_product(Product p) {
  // Cast the values, x and y to one dtype, and make everything contiguous.
  const auto type = p.check();
  if (p.validate && !p.x.is_meta()) check_index_values(p.op, p.structure);
  Tensor y = empty_result(p.shape(), p.x.options().dtype(type));
  bool done = false;
  with_ladder(p.structure.format,
              [&](const auto& ladder, auto, const char* name, auto) { done = is_done(y, ladder, name, p.algorithm); });
  if (done) return y;
  Structure s = std::move(p.structure);
  for (Tensor& t : s.index) t = cast(std::move(t), t.scalar_type());
  Tensors values = std::move(p.values);
  for (Tensor& v : values) v = cast(std::move(v), type);
  const Tensor &x = p.x = cast(std::move(p.x), type), y0 = p.y ? cast(*p.y, type) : Tensor();
  // A CSC is the transpose of a CSR. Its deterministic product goes through a plan of its rows, by the ladder of CSR.
  if (s.format == Format::csc && p.algorithm == "auto" && (x.is_cuda() || p.plan_ptrs)) {
    const Plan plan = plan_of(p.op, s, true, p.plan_ptrs, p.plan_perm);
    run_plan(p.op, plan, values[0], x, y0, y, "auto");
    return y;
  }
  // Fill Args, and run the rung.
  Stored stored{s, values, {}, p.sorted};
  if (info_of(s.format).has(FormatInfo::has_coordinates)) sort_coordinates(p, s, values, stored);
  with_ladder(s.format, [&](const auto& ladder, auto choose, const char* name, auto args) {
    args.op = p.op;
    args.values = data_or_null(values[0]);
    args.entries = values[0].numel();
    args.rows = y.size(0);
    args.cols = x.size(0);
    args.k = p.matrix ? y.size(1) : 1;
    args.x = data_or_null(x);
    args.y0 = data_or_null(y0);
    args.y = y.mutable_data_ptr();
    args.dtype = dtype_of_tensor(p.op, x);
    args.long_index = s.long_index();
    give_structure(args, stored);
    run(ladder, choose, name, p.algorithm, x, args);
  });
  return y;
}

void product_kernel(const c10::OperatorHandle& op, Stack* stack) {
  on_stack(stack, op.schema().arguments().size(), [&](Rules::Args args) { return run_product(Product(op, args)); });
}

void product_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  differentiate(op, keys, stack, product_rules);
}

template <c10::DispatchKey key>
void product_autocast(const c10::OperatorHandle& op, Stack* stack) {
  cast_and_call(op, stack, Autocast::float32, key);
}

// ---- registration

std::string schema_of(const FormatInfo& info, const char* operation) {
  std::string schema = std::string(operation) + "_" + info.name + "(";
  for (const Field& field : info.fields) schema += std::string("Tensor ") + field.name + ", ";
  if (info.has(FormatInfo::in_sections)) schema += "SymInt section_rows, ";
  schema += "Tensor x, ";
  if (!info.has(FormatInfo::gives_rows)) schema += "SymInt rows, ";
  schema += "SymInt? cols=None, Tensor? y=None, Tensor? plan_ptrs=None, Tensor? plan_perm=None, bool validate=False, ";
  if (info.has(FormatInfo::has_coordinates)) schema += "bool row_sorted=False, ";
  return schema + "str algorithm=\"auto\") -> Tensor";
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  for (const FormatInfo& info : all_formats()) {
    for (const char* operation : {"spmv", "spmm"}) {
      const std::string schema = schema_of(info, operation), op = name_of(schema.c_str());
      m.def(torch::schema(schema.c_str()), {at::Tag::pt2_compliant_tag});
      implement<&product_kernel>(m, op, c10::DispatchKey::CPU);
      implement<&product_kernel>(m, op, c10::DispatchKey::CUDA);
      implement<&product_kernel>(m, op, c10::DispatchKey::Meta);
      implement<&product_autograd>(m, op, c10::DispatchKey::Autograd);
      implement<&product_autocast<c10::DispatchKey::AutocastCPU>>(m, op, c10::DispatchKey::AutocastCPU);
      implement<&product_autocast<c10::DispatchKey::AutocastCUDA>>(m, op, c10::DispatchKey::AutocastCUDA);
    }
  }
}

}  // namespace
}  // namespace tp
