// torch_patterns::spgemm and spgemm_values, and torch_patterns_parts::spgemm_at_once: checks, kernels, Meta,
// derivatives.
//
// T = sum over the products of a[i, k] b[k, j] c[i, j] is linear in the values of each of the three matrices.
// spgemm_values is the derivative of T with respect to the values of one of them, so its own derivatives are other
// calls of spgemm_values. The same holds for spgemm, which also finds the structure of C. The size of C depends on the
// data: the Meta kernel, which returns an unbacked size, is in Python.
#include "sparse/spgemm.h"

#include "torch/checks.h"
#include "torch/read_numbers.h"
#include "torch/sparse.h"

namespace tp {
namespace {

constexpr const char *product_name = "spgemm", *values_name = "spgemm_values";
Pattern pattern(product_name, spgemm::ladder);

using Csr = std::tuple<Tensor, Tensor, Tensor>;  // values, row_ptrs, col_idx

struct Spgemm {
  static constexpr auto schema =
      "spgemm(Tensor a_row_ptrs, Tensor a_col_idx, Tensor a_values, Tensor b_row_ptrs, Tensor b_col_idx, Tensor "
      "b_values, SymInt cols, str algorithm=\"auto\") -> (Tensor values, Tensor row_ptrs, Tensor col_idx)";
  static constexpr std::array tags = {at::Tag::dynamic_output_shape};
  Tensor a_row_ptrs, a_col_idx, a_values, b_row_ptrs, b_col_idx, b_values;
  SymInt cols;
  Str algorithm;

  Csr kernel() const { return multiply("spgemm: A", "spgemm: B", nullptr); }
  // Errors about the contents of index tensors begin with the given names. If there are more products than `admits`
  // allows, the result is three tensors without elements.
  Csr multiply(const char* a_name, const char* b_name, const std::function<bool(int64_t)>& admits) const;
  Tensors vjp(const Backward& b) const;
  Tensors jvp(const Forward& f) const;
  bool keeps(size_t input) const {
    return input == 2 ? b_values.requires_grad() : input != 5 || a_values.requires_grad();
  }
  bool keeps_output(size_t output) const { return output > 0; }

  // The values of one matrix, if C's structure is known.
  Tensor values(Str of, const Tensor& row_ptrs, const Tensor& col_idx, const Tensor& x, const Tensor& y) const;
};

// The product, if it has at most `most` products of entries and, on CUDA, `bytes_each` bytes are free for each of them;
// otherwise three tensors without elements. The number of products is known only on the device, so an operator of its
// own that counts them would make the host wait once more. Errors about indices are those of the constructor of a CSR.
struct SpgemmAtOnce {
  static constexpr auto schema =
      "torch_patterns_parts::spgemm_at_once(Tensor a_row_ptrs, Tensor a_col_idx, Tensor a_values, Tensor b_row_ptrs, "
      "Tensor b_col_idx, Tensor b_values, SymInt cols, int most, int bytes_each, str algorithm=\"auto\") -> (Tensor "
      "values, Tensor row_ptrs, Tensor col_idx)";
  static constexpr std::array tags = {at::Tag::dynamic_output_shape};
  Tensor a_row_ptrs, a_col_idx, a_values, b_row_ptrs, b_col_idx, b_values;
  SymInt cols;
  int64_t most, bytes_each;
  Str algorithm;

  Spgemm whole() const { return {a_row_ptrs, a_col_idx, a_values, b_row_ptrs, b_col_idx, b_values, cols, algorithm}; }
  Csr kernel() const {
    return whole().multiply("csr", "csr", [this](int64_t products) {
      return products <= most && (!a_values.is_cuda() || has_free_memory(a_values.get_device(), products * bytes_each));
    });
  }
  Tensors vjp(const Backward& b) const { return whole().vjp(b); }
  Tensors jvp(const Forward& f) const { return f.output(1).sym_size(0) == 0 ? Tensors{Tensor()} : whole().jvp(f); }
  bool keeps(size_t input) const { return whole().keeps(input); }
  bool keeps_output(size_t output) const { return whole().keeps_output(output); }
};

struct SpgemmValues {
  static constexpr auto schema =
      "spgemm_values(str of, Tensor a_row_ptrs, Tensor a_col_idx, Tensor b_row_ptrs, Tensor b_col_idx, Tensor "
      "c_row_ptrs, Tensor c_col_idx, Tensor x, Tensor y, SymInt cols, str algorithm=\"auto\") -> Tensor";
  Str of;
  Tensor a_row_ptrs, a_col_idx, b_row_ptrs, b_col_idx, c_row_ptrs, c_col_idx;
  Tensor x, y;  // the values of the other two matrices
  SymInt cols;
  Str algorithm;

  TP_LINEAR(Tensor)
  bool keeps(size_t input) const { return input == 6 ? y.requires_grad() : input != 7 || x.requires_grad(); }

  // Matrices a, b and c are numbered 0, 1 and 2.
  size_t wanted() const { return size_t(of[0] - 'a'); }
  size_t first() const { return wanted() == 0 ? 1 : 0; }
  size_t second() const { return wanted() == 2 ? 1 : 2; }
  const Tensor& indices(size_t matrix) const { return matrix == 0 ? a_col_idx : matrix == 1 ? b_col_idx : c_col_idx; }
  // The values of another matrix, given those of `known` and of the third.
  Tensor gradient(size_t matrix, const Tensor& known, size_t third, const Tensor& values) const;
};

// ---- checks

// One matrix in CSR, checked.
Structure structure(const char* what, const Tensor& ptrs, const Tensor& idx, const SymInt& cols, const Tensor& first) {
  TORCH_CHECK_VALUE(ptrs.dim() == 1 && ptrs.sym_size(0) > 0, what,
                    ": row_ptrs must have one dimension and one element at least, got shape ", ptrs.sym_sizes());
  const Structure s{Format::csr, {ptrs, idx}, ptrs.sym_size(0) - 1, cols};
  check_csr(what, s, first);
  return s;
}

void check_values(const char* op, const Named& values, const Tensor& idx, const Tensor& others) {
  const auto type = values.tensor.scalar_type();
  TORCH_CHECK_VALUE(values.tensor.sym_sizes() == idx.sym_sizes(), op, ": ", values.name, " has shape ",
                    values.tensor.sym_sizes(), ", its indices ", idx.sym_sizes());
  TORCH_CHECK_TYPE(type == at::kInt || type == at::kLong || type == at::kHalf || type == at::kBFloat16 ||
                       type == at::kFloat || type == at::kDouble,
                   op, ": ", values.name, " is ", type,
                   "; int32, int64, float16, bfloat16, float32 and float64 are supported");
  TORCH_CHECK_TYPE(type == others.scalar_type(), op, ": values of ", others.scalar_type(), " and of ", type);
  check_same_device(op, {{"its indices", &idx}, {values.name, &values.tensor}});
}

// ---- kernels: CPU and CUDA alike

// A matrix, and how errors about its contents begin.
struct Operand {
  const char* name;
  Structure structure;
};

// The operands of a call, A and B and perhaps C, and their contiguous arrays. If B is much wider than its number of
// entries, its columns are renumbered, so that memory is proportional to the entries.
struct Arrays {
  std::vector<Operand> operands;
  Tensor a_ptrs, a_idx, b_ptrs, b_idx, c_ptrs, c_idx, columns;
  int64_t cols;

  Arrays(const char* op, Str algorithm, std::vector<Operand> given) : operands(std::move(given)) {
    refuse_capture((std::string(op) + ": algorithm '" + std::string(algorithm) + "'").c_str(),
                   operands[0].structure[0]);
    const auto contiguous = [&](size_t matrix, size_t i) { return operands[matrix].structure[i].contiguous(); };
    a_ptrs = contiguous(0, 0), a_idx = contiguous(0, 1), b_ptrs = contiguous(1, 0), b_idx = contiguous(1, 1);
    if (operands.size() > 2) c_ptrs = contiguous(2, 0), c_idx = contiguous(2, 1);
    cols = operands[1].structure.cols.expect_int();
    if (cols / 4 <= b_idx.size(0) + (1 << 18)) return;
    check_contents();
    number_columns();
  }

  // Raises the error that says which pointer or index is wrong, if one is.
  void check_contents() const {
    for (const Operand& operand : operands) check_index_values(operand.name, operand.structure);
  }

  // Finds the columns in use, in order, and replaces each index by its position among them.
  void number_columns() {
    const int64_t n = b_idx.size(0);
    const auto found = at::_unique2(c_idx.defined() ? at::cat({b_idx, c_idx}) : b_idx, true, /*return_inverse=*/true);
    columns = std::get<0>(found);
    cols = columns.size(0);
    const Tensor positions = std::get<1>(found).to(b_idx.scalar_type());
    b_idx = positions.narrow(0, 0, n).contiguous();
    if (c_idx.defined()) c_idx = positions.narrow(0, n, c_idx.size(0)).contiguous();
  }

  sparse::SpgemmArgs args(const char* op, const Tensor& like) const {
    sparse::SpgemmArgs args{};
    args.op = op;
    args.a_ptrs = data_or_null(a_ptrs), args.a_idx = data_or_null(a_idx);
    args.b_ptrs = data_or_null(b_ptrs), args.b_idx = data_or_null(b_idx);
    args.c_ptrs = data_or_null(c_ptrs), args.c_idx = data_or_null(c_idx);
    args.a_entries = a_idx.size(0), args.b_entries = b_idx.size(0),
    args.c_entries = c_idx.defined() ? c_idx.size(0) : 0;
    args.rows = a_ptrs.size(0) - 1, args.inner = b_ptrs.size(0) - 1, args.cols = cols;
    args.dtype = dtype_of_tensor(op, like);
    args.long_index = a_ptrs.scalar_type() == at::kLong;
    args.read = number_reader(a_ptrs);
    args.explain = [this] { check_contents(); };
    return args;
  }
};

Csr Spgemm::multiply(const char* a_name, const char* b_name, const std::function<bool(int64_t)>& admits) const {
  const Structure a = structure("spgemm: A", a_row_ptrs, a_col_idx, b_row_ptrs.sym_size(0) - 1, a_row_ptrs);
  const Structure b = structure("spgemm: B", b_row_ptrs, b_col_idx, cols, a_row_ptrs);
  check_values(product_name, {"a_values", a_values}, a_col_idx, a_values);
  check_values(product_name, {"b_values", b_values}, b_col_idx, a_values);
  const Arrays arrays(product_name, algorithm, {{a_name, a}, {b_name, b}});
  const Tensor x = a_values.contiguous(), y = b_values.contiguous();
  const Tensor ptrs = at::empty({a_row_ptrs.size(0)}, a_row_ptrs.options().dtype(at::kLong));
  Tensor col_idx, values;
  sparse::SpgemmArgs args = arrays.args(product_name, x);
  args.wanted = sparse::Wanted::product;
  args.a = data_or_null(x), args.b = data_or_null(y);
  args.ptrs = ptrs.mutable_data_ptr<int64_t>();
  args.admits = admits;
  args.room = [&](int64_t n) {
    TORCH_CHECK_VALUE(args.long_index || n <= std::numeric_limits<int32_t>::max(), product_name, ": the product has ",
                      n, " entries, more than indices of int32 can count");
    col_idx = empty_result({n}, a_col_idx.options());
    values = empty_result({n}, x.options());
    return sparse::SpgemmArgs::Room{col_idx.mutable_data_ptr(), values.mutable_data_ptr()};
  };
  run(spgemm::ladder, spgemm::choose, product_name, algorithm, x, args);
  if (!values.defined()) return {x.new_empty({0}), a_row_ptrs.new_empty({0}), a_col_idx.new_empty({0})};
  if (arrays.columns.defined()) col_idx = arrays.columns.index_select(0, col_idx);
  return {values, ptrs.to(a_row_ptrs.scalar_type()), col_idx};
}

Tensor SpgemmValues::kernel() const {
  TORCH_CHECK_VALUE(of == "a" || of == "b" || of == "c", values_name, ": of must be 'a', 'b' or 'c', got '",
                    std::string(of), "'");
  const Structure a = structure("spgemm_values: A", a_row_ptrs, a_col_idx, b_row_ptrs.sym_size(0) - 1, a_row_ptrs);
  const Structure b = structure("spgemm_values: B", b_row_ptrs, b_col_idx, cols, a_row_ptrs);
  const Structure c = structure("spgemm_values: C", c_row_ptrs, c_col_idx, cols, a_row_ptrs);
  TORCH_CHECK_VALUE(c.rows == a.rows, values_name, ": C has ", c.rows, " rows, A ", a.rows);
  check_values(values_name, {"x", x}, indices(first()), x);
  check_values(values_name, {"y", y}, indices(second()), x);
  Tensor out = empty_result({indices(wanted()).sym_size(0)}, x.options());
  if (is_done(out, spgemm::ladder, values_name, algorithm)) return out;
  const Arrays arrays(values_name, algorithm,
                      {{"spgemm_values: A", a}, {"spgemm_values: B", b}, {"spgemm_values: C", c}});
  const Tensor values[] = {x.contiguous(), y.contiguous()};
  sparse::SpgemmArgs args = arrays.args(values_name, x);
  const void** const given[] = {&args.a, &args.b, &args.c};
  *given[first()] = data_or_null(values[0]);
  *given[second()] = data_or_null(values[1]);
  args.wanted = sparse::Wanted(int(sparse::Wanted::a) + int(wanted()));
  args.out = out.mutable_data_ptr();
  run(spgemm::ladder, spgemm::choose, product_name, algorithm, x, args);
  return out;
}

// ---- derivatives

Tensor Spgemm::values(Str of, const Tensor& row_ptrs, const Tensor& col_idx, const Tensor& x, const Tensor& y) const {
  return call(SpgemmValues{of, a_row_ptrs, a_col_idx, b_row_ptrs, b_col_idx, row_ptrs, col_idx, x, y, cols, algorithm});
}

Tensors Spgemm::vjp(const Backward& b) const {
  const Tensor &ptrs = b.output(1), &idx = b.output(2), &g = b.grad(0);
  Tensors found(6);
  if (b.wants(2)) found[2] = values("a", ptrs, idx, b_values, g);
  if (b.wants(5)) found[5] = values("b", ptrs, idx, a_values, g);
  return found;
}

Tensors Spgemm::jvp(const Forward& f) const {
  const Tensor &da = f.tangent(2), &db = f.tangent(5);
  const auto of_c = [&](const Tensor& x, const Tensor& y) { return values("c", f.output(1), f.output(2), x, y); };
  return {plus(da.defined() ? of_c(da, b_values) : da, db.defined() ? of_c(a_values, db) : db)};
}

Tensor SpgemmValues::gradient(size_t matrix, const Tensor& known, size_t third, const Tensor& other) const {
  SpgemmValues op = *this;
  op.of = std::string_view("abc").substr(matrix, 1);
  op.x = wanted() < third ? known : other;
  op.y = wanted() < third ? other : known;
  return call(op);
}

Tensors SpgemmValues::vjp(const Backward& b) const {
  Tensors found(8);
  if (b.wants(6)) found[6] = gradient(first(), b.grad(), second(), y);
  if (b.wants(7)) found[7] = gradient(second(), b.grad(), first(), x);
  return found;
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<Spgemm, SpgemmValues>(m); }
TORCH_LIBRARY_FRAGMENT(torch_patterns_parts, m) { define<SpgemmAtOnce>(m); }

}  // namespace
}  // namespace tp
