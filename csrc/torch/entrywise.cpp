// torch_patterns_parts::entrywise and values_at, for A + B, A - B and A * B: checks, kernels, derivatives.
//
// The elementwise sum and product are linear in the values of each matrix. So is values_at, which brings values from
// one structure to another, and its transpose is values_at with the structures exchanged. So all derivatives consist of
// calls of values_at. The number of entries of C depends on the data, so the Meta kernel of entrywise, which has an
// unbacked size, is in Python (sparse/entrywise.py).
#include "sparse/entrywise.h"

#include "torch/checks.h"
#include "torch/read_numbers.h"
#include "torch/sparse.h"

namespace tp {
namespace {

using sparse::Entrywise;

constexpr const char* values_name = "values_at";

struct Combine {
  static constexpr auto schema =
      "entrywise(str op, Tensor a_row_ptrs, Tensor a_col_idx, Tensor a_values, Tensor b_row_ptrs, Tensor b_col_idx, "
      "Tensor b_values, SymInt rows, SymInt cols) -> (Tensor values, Tensor row_ptrs, Tensor col_idx)";
  static constexpr std::array tags = {at::Tag::dynamic_output_shape};
  Str op;
  Tensor a_row_ptrs, a_col_idx, a_values, b_row_ptrs, b_col_idx, b_values;
  SymInt rows, cols;

  std::tuple<Tensor, Tensor, Tensor> kernel() const;
  Tensors vjp(const Backward& b) const;
  Tensors jvp(const Forward& f) const;
  bool multiplies() const { return op == "multiply"; }
  bool keeps(size_t input) const {
    if (input == 2) return multiplies() && b_values.requires_grad();
    return input != 5 || (multiplies() && a_values.requires_grad());
  }
  bool keeps_output(size_t output) const { return output > 0; }
};

struct ValuesAt {
  static constexpr auto schema =
      "torch_patterns_parts::values_at(Tensor row_ptrs, Tensor col_idx, Tensor values, Tensor at_row_ptrs, Tensor "
      "at_col_idx, SymInt rows, SymInt cols) -> Tensor";
  Tensor row_ptrs, col_idx, values, at_row_ptrs, at_col_idx;
  SymInt rows, cols;

  TP_LINEAR(Tensor)
  bool keeps(size_t input) const { return input != 2; }
};

// ---- checks

void check_values(const std::string& what, const Tensor& values, const Tensor& idx, const Tensor& others) {
  dtype_of_tensor(what.c_str(), values);
  TORCH_CHECK_VALUE(values.sym_sizes() == idx.sym_sizes(), what, ": values have shape ", values.sym_sizes(),
                    ", col_idx ", idx.sym_sizes());
  TORCH_CHECK_TYPE(values.scalar_type() == others.scalar_type(), what, ": values are ", values.scalar_type(),
                   ", those of A ", others.scalar_type());
  check_same_device(what.c_str(), {{"col_idx", &idx}, {"values", &values}});
}

// ---- kernels: CPU and CUDA alike

// The contiguous arrays of a call. They must outlive its args.
struct Arrays {
  Tensor a_ptrs, a_idx, a_values, b_ptrs, b_idx, b_values;

  sparse::EntrywiseArgs args(const char* op, const SymInt& rows, const SymInt& cols) const {
    refuse_capture(op, a_idx);
    sparse::EntrywiseArgs args{};
    args.op = op;
    args.a = {"A", a_ptrs.const_data_ptr(), a_idx.const_data_ptr(), a_values.const_data_ptr(), a_idx.size(0)};
    args.b = {"B", b_ptrs.const_data_ptr(), b_idx.const_data_ptr(), data_or_null(b_values), b_idx.size(0)};
    args.rows = rows.expect_int();
    args.cols = cols.expect_int();
    args.dtype = dtype_of_tensor(op, a_values);
    args.long_index = a_ptrs.scalar_type() == at::kLong;
    args.read = number_reader(a_ptrs);
    args.explain = [this, op, rows, cols] {
      check_index_values((std::string(op) + ": A").c_str(), {Format::csr, {a_ptrs, a_idx}, rows, cols});
      check_index_values((std::string(op) + ": B").c_str(), {Format::csr, {b_ptrs, b_idx}, rows, cols});
    };
    return args;
  }
};

std::tuple<Tensor, Tensor, Tensor> Combine::kernel() const {
  constexpr std::tuple<const char*, const char*, Entrywise> all[] = {{"add", "A + B", Entrywise::add},
                                                                     {"subtract", "A - B", Entrywise::subtract},
                                                                     {"multiply", "A * B", Entrywise::multiply}};
  const auto* found = std::find_if(std::begin(all), std::end(all), [&](const auto& x) { return op == std::get<0>(x); });
  TORCH_CHECK_VALUE(found != std::end(all), "entrywise: unknown op '", std::string(op),
                    "'; choose from: add, subtract, multiply");
  const char* const name = std::get<1>(*found);
  const std::string a = std::string(name) + ": A", b = std::string(name) + ": B";
  check_csr(a.c_str(), {Format::csr, {a_row_ptrs, a_col_idx}, rows, cols}, a_row_ptrs);
  check_csr(b.c_str(), {Format::csr, {b_row_ptrs, b_col_idx}, rows, cols}, a_row_ptrs);
  check_values(a, a_values, a_col_idx, a_values);
  check_values(b, b_values, b_col_idx, a_values);
  TORCH_CHECK(op != "subtract" || a_values.scalar_type() != at::kBool, name, ": truth values have no difference");
  const Arrays arrays{a_row_ptrs.contiguous(), a_col_idx.contiguous(), a_values.contiguous(),
                      b_row_ptrs.contiguous(), b_col_idx.contiguous(), b_values.contiguous()};
  const sparse::EntrywiseArgs args = arrays.args(name, rows, cols);
  TORCH_CHECK_VALUE(args.long_index || args.a.entries + args.b.entries <= std::numeric_limits<int32_t>::max(), name,
                    ": ", args.a.entries, " and ", args.b.entries, " entries are more than indices of int32 can count");
  const Tensor ptrs = empty_result(a_row_ptrs.sym_sizes(), a_row_ptrs.options());
  Tensor col_idx, values;
  const auto room = [&](int64_t n) {
    col_idx = empty_result({n}, a_col_idx.options());
    values = empty_result({n}, a_values.options());
    return sparse::Room{col_idx.mutable_data_ptr(), values.mutable_data_ptr()};
  };
  with_context(arrays.a_values, [&](TorchContext& context) {
    sparse::entrywise(std::get<2>(*found), args, ptrs.mutable_data_ptr(), room, context);
  });
  return {values, ptrs, col_idx};
}

Tensor ValuesAt::kernel() const {
  check_csr("values_at: A", {Format::csr, {row_ptrs, col_idx}, rows, cols}, row_ptrs);
  check_csr("values_at: B", {Format::csr, {at_row_ptrs, at_col_idx}, rows, cols}, row_ptrs);
  check_values(values_name, values, col_idx, values);
  Tensor out = empty_result(at_col_idx.sym_sizes(), values.options());
  if (out.is_meta()) return out;
  const Arrays arrays{row_ptrs.contiguous(),    col_idx.contiguous(),    values.contiguous(),
                      at_row_ptrs.contiguous(), at_col_idx.contiguous(), {}};
  const sparse::EntrywiseArgs args = arrays.args(values_name, rows, cols);
  with_context(arrays.a_values,
               [&](TorchContext& context) { sparse::values_at(args, out.mutable_data_ptr(), context); });
  return out;
}

// ---- derivatives

Tensors Combine::vjp(const Backward& b) const {
  const Tensor &ptrs = b.output(1), &idx = b.output(2), &g = b.grad(0);
  const auto to_c = [&](const Tensor& from_ptrs, const Tensor& from_idx, const Tensor& x) {
    return call(ValuesAt{from_ptrs, from_idx, x, ptrs, idx, rows, cols});
  };
  const auto from_c = [&](const Tensor& x, const Tensor& to_ptrs, const Tensor& to_idx) {
    return call(ValuesAt{ptrs, idx, x, to_ptrs, to_idx, rows, cols});
  };
  Tensors found(6);
  if (b.wants(2)) {
    found[2] = from_c(multiplies() ? g * to_c(b_row_ptrs, b_col_idx, b_values) : g, a_row_ptrs, a_col_idx);
  }
  if (b.wants(5)) {
    found[5] = from_c(multiplies() ? g * to_c(a_row_ptrs, a_col_idx, a_values) : g, b_row_ptrs, b_col_idx);
    if (op == "subtract") found[5] = found[5].neg();
  }
  return found;
}

Tensors Combine::jvp(const Forward& f) const {
  const auto to_c = [&](const Tensor& ptrs, const Tensor& idx, const Tensor& x) {
    return call(ValuesAt{ptrs, idx, x, f.output(1), f.output(2), rows, cols});
  };
  const auto of_a = [&](const Tensor& x) { return to_c(a_row_ptrs, a_col_idx, x); };
  const auto of_b = [&](const Tensor& x) { return to_c(b_row_ptrs, b_col_idx, x); };
  Tensor da = f.tangent(2), db = f.tangent(5);
  if (da.defined()) da = multiplies() ? of_a(da) * of_b(b_values) : of_a(da);
  if (db.defined()) db = multiplies() ? of_a(a_values) * of_b(db) : of_b(db);
  if (db.defined() && op == "subtract") db = db.neg();
  return {plus(da, db)};
}

Tensors ValuesAt::vjp(const Backward& b) const {
  return {Tensor(), Tensor(), call(ValuesAt{at_row_ptrs, at_col_idx, b.grad(), row_ptrs, col_idx, rows, cols})};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns_parts, m) { define<Combine, ValuesAt>(m); }

}  // namespace
}  // namespace tp
