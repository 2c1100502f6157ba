// What the sparse operators share: the formats, where the entries of a matrix are, checks, and plans.
#pragma once
#include <ATen/ATen.h>

#include "sparse/sparse.h"
#include "torch/index.h"

namespace tp {

using c10::SymInt;
using OptionalTensor = std::optional<Tensor>;

enum class Format { coo, csr, csc, ell, hyb, jds, sell, blocked };
constexpr int format_count = 8;

// The tensors of a container in order. Values are among them: `values` is the place of the first.
struct FormatInfo {
  const char* name;
  std::vector<const char*> fields;
  std::vector<size_t> values;
  bool gives_rows;  // whether the fields tell how many rows there are

  bool is_value(size_t field) const { return field == values[0] || field == values.back(); }
};

const FormatInfo& info_of(Format format);
Format format_of(const char* op, Str name);

// Where the entries of a matrix are. Entries are counted as in the flattened values, those of the tail of a HYB matrix
// after those of its padded rows.
struct Structure {
  Format format{};
  std::vector<Tensor> index;  // the fields but for the values
  SymInt rows = 0, cols = 0, section_rows = 0;

  const Tensor& operator[](size_t i) const { return index[i]; }
  const Tensor& columns() const;  // col_idx, and of CSC row_idx: as long as the values, of HYB the padded ones
  SymInt entries() const;
  bool long_index() const { return index[0].scalar_type() == at::kLong; }
  Structure contiguous() const;
};

// Dtypes, devices, dimensions and lengths, which is all that can be seen without looking at what the tensors hold. The
// number of columns of a CSC matrix is told by its pointers.
void check_structure(const char* op, const Structure& s);
// Every index and pointer; waits for the device, once or a few times. An IndexError or a ValueError tells the first
// that is wrong.
void check_index_values(const char* op, const Structure& s);

// A product through a permutation of the entries: those of row (or column) i of the matrix are, in the order of the
// entries, perm[ptrs[i]] to perm[ptrs[i + 1] - 1], and `other` are the columns (or rows) beside perm. Where there are
// stages, `origin` is `other` in the order of the entries (sparse/sparse.h). All contiguous.
struct Plan {
  Tensor ptrs, perm, other, stages, origin;
};

// As given: ptrs [n + 1] and perm, [entries], or [2, entries] with `other` in the second row. Stages, 8 bytes an entry,
// and `origin` may stand in further rows.
void check_plan(const char* op, const Structure& s, bool by_rows, const Tensor& ptrs, const Tensor& perm);
// From a plan that was given, or built on the device.
Plan plan_of(const char* op, const Structure& s, bool by_rows, const OptionalTensor& ptrs, const OptionalTensor& perm);
// The row and the column of each entry, -1 for padding.
std::pair<Tensor, Tensor> coordinates(const Structure& s);
// The number of the segment that each of n places lies in.
Tensor segments(const Tensor& ptrs, int64_t n);
// Of a blocked matrix: where each place stands in the order of bins.
Tensor places_by_bins(const Tensor& octet_idx);
// 0 to n - 1, like indices.
inline Tensor places(const Tensor& like, int64_t n) { return at::arange(n, like.options()); }
// A stable order by keys of 0 to n, of which no other bits count.
Tensor order_by(const Tensor& keys, const SymInt& n, Str algorithm = "auto");

}  // namespace tp
