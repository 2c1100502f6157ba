// The three products of a sparse matrix A: A x, its transpose A^T g, and the sampled product, which is g x^T at the
// entries of A. The derivative of each is made of the other two.
#pragma once
#include "torch/operator.h"
#include "torch/sparse.h"

namespace tp {

// What the three have in common, besides the values, x and g. Values are flat, one per entry; x is [cols, k], g is
// [rows, k].
struct Bilinear {
  Str format;
  Tensors index;
  SymInt rows, cols, section_rows;
  OptionalTensor plan_ptrs, plan_perm;

  Tensor product(const Tensor& values, const Tensor& x) const;     // [rows, k]
  Tensor transposed(const Tensor& values, const Tensor& g) const;  // [cols, k]
  Tensor sampled(const Tensor& g, const Tensor& x) const;          // [entries]
};

// y = the matrix of a plan times x, plus y0 if given. It uses the ladder of CSR.
void run_plan(const char* op, const Plan& plan, const Tensor& values, const Tensor& x, const Tensor& y0, Tensor& y,
              Str algorithm);

// The positions of the arguments of spmv_<format> and spmm_<format>.
struct ArgumentPositions {
  size_t section_rows, x, rows, cols, y, plan, validate, sorted, algorithm;
  explicit ArgumentPositions(Format format) {
    const FormatInfo& info = info_of(format);
    size_t next = info.fields.size();
    section_rows = info.has(FormatInfo::in_sections) ? next++ : 0;
    x = next++;
    rows = info.has(FormatInfo::gives_rows) ? 0 : next++;
    cols = next++;
    y = next++;
    plan = next, next += 2;
    validate = next++;
    sorted = info.has(FormatInfo::has_coordinates) ? next++ : 0;
    algorithm = next;
  }
};

// The arguments of one call. For a Backward, x and the values may not have been kept; the sizes of x then come from it.
struct Product {
  const char* op;  // lives as long as the operator
  bool matrix;     // spmm, not spmv
  Structure structure;
  Tensors values;
  Tensor x;
  OptionalTensor y, plan_ptrs, plan_perm;
  bool validate, sorted;
  Str algorithm;

  Product(const c10::OperatorHandle& handle, Rules::Args args, const Backward* b = nullptr);

  // The plan that these products take: a CSC already has the order by columns, and needs a plan of its rows.
  bool plan_by_rows() const { return structure.format == Format::csc; }
  std::vector<SymInt> shape() const {
    return matrix ? std::vector<SymInt>{structure.rows, x.sym_size(1)} : std::vector<SymInt>{structure.rows};
  }
  at::ScalarType dtype() const;
  // Checks that do not read the contents of tensors; returns the dtype of the result.
  at::ScalarType check() const;
};

// The derivatives of these products.
extern const Rules product_rules;

}  // namespace tp
