// What the sparse operators share: the formats, the structure of a matrix, checks, and plans.
#pragma once
#include <ATen/ATen.h>

#include "sparse/sparse.h"
#include "torch/index.h"

namespace tp {

using c10::SymInt;
using OptionalTensor = std::optional<Tensor>;

enum class Format { coo, csr, csc, ell, hyb, jds, sell, blocked };
constexpr int format_count = 8;

// The tensors of a container in order. The values are among them: `values` is their index.
struct FormatInfo {
  const char* name;
  std::vector<const char*> fields;
  std::vector<size_t> values;
  bool gives_rows;  // whether the fields determine the number of rows

  bool is_value(size_t field) const { return field == values[0] || field == values.back(); }
};

const FormatInfo& info_of(Format format);
Format format_of(const char* op, Str name);

// The structure of a matrix. Entries are numbered as in the flattened values; in HYB, those of the tail follow those of
// the padded rows.
struct Structure {
  Format format{};
  std::vector<Tensor> index;  // the fields without the values
  SymInt rows = 0, cols = 0, section_rows = 0;

  const Tensor& operator[](size_t i) const { return index[i]; }
  const Tensor& columns() const;  // col_idx, in CSC row_idx: as long as the values, in HYB the padded ones
  SymInt entries() const;
  bool long_index() const { return index[0].scalar_type() == at::kLong; }
  Structure contiguous() const;
};

// Checks dtypes, devices, dimensions and lengths, which does not read the contents of tensors. In CSC, the pointers
// determine the number of columns.
void check_structure(const char* op, const Structure& s);
// Checks every index and pointer; waits for the device, once or a few times. An IndexError or a ValueError names the
// first wrong one.
void check_index_values(const char* op, const Structure& s);

// A permutation of the entries for products: in the order of the entries, those of row (or column) i are perm[ptrs[i]]
// to perm[ptrs[i + 1] - 1], and `other` holds their columns (or rows). If there are stages, `origin` is `other` in
// storage order (sparse/sparse.h). All tensors are contiguous.
struct Plan {
  Tensor ptrs, perm, other, stages, origin;
};

// As given by the user: ptrs [n + 1] and perm, [entries], or [2, entries] with `other` in the second row. Further rows
// may hold the stages, 8 bytes per entry, and `origin`.
void check_plan(const char* op, const Structure& s, bool by_rows, const Tensor& ptrs, const Tensor& perm);
// From a plan that was given, or from one built on the device.
Plan plan_of(const char* op, const Structure& s, bool by_rows, const OptionalTensor& ptrs, const OptionalTensor& perm);
// The row and the column of each entry, -1 for padding.
std::pair<Tensor, Tensor> coordinates(const Structure& s);
// The segment that each of n positions belongs to.
Tensor segments(const Tensor& ptrs, int64_t n);
// In a blocked matrix: the position of each entry in the order of bins.
Tensor places_by_bins(const Tensor& octet_idx);
// 0 to n - 1, with the dtype and device of the indices.
inline Tensor places(const Tensor& like, int64_t n) { return at::arange(n, like.options()); }
// A stable order by keys from 0 to n; only the bits that such keys need are sorted by.
Tensor order_by(const Tensor& keys, const SymInt& n, Str algorithm = "auto");

}  // namespace tp
