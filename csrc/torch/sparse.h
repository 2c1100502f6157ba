// Shared by the sparse operators: the formats, the structure of a matrix, checks, and plans.
#pragma once
#include <ATen/ATen.h>

#include "sparse/sparse.h"
#include "torch/index.h"

namespace tp {

using c10::SymInt;
using OptionalTensor = std::optional<Tensor>;

enum class Format {
#define FORMAT(name, ...) name,
#include "sparse/formats.def"
#undef FORMAT
};

// The structure of a matrix. Entries are numbered as in the flattened values; in HYB, the entries of the tail follow
// those of the padded rows.
struct Structure {
  Format format{};
  std::vector<Tensor> index;  // the fields without the values
  SymInt rows = 0, cols = 0, section_rows = 0;

  const Tensor& operator[](size_t i) const { return index[i]; }
  // For each tensor of values, the indices of the same shape. In HYB the padded rows come first, then the tail.
  const Tensor& beside_values(size_t i = 0) const;
  SymInt entries() const;
  bool long_index() const { return index[0].scalar_type() == at::kLong; }
  Structure contiguous() const;
};

class Lengths;
class Findings;
struct Part;
using Coordinates = std::pair<Tensor, Tensor>;  // the row and the column of each entry, -1 for padding

enum class FieldKind { pointers, index, padded_index, short_index, values };
struct Field {
  const char* name;
  FieldKind kind;
};

// The description of a format in formats.def, and what operators do with a matrix of that format (sparse_formats.cpp).
struct FormatInfo {
  enum Trait : unsigned {
    gives_rows = 1,        // the fields determine the number of rows
    has_coordinates = 2,   // the last two index tensors are the rows and columns of entries, which may be sorted by row
    may_lack_entries = 4,  // an entry may belong to no row
    padded = 8,
    in_sections = 16,  // it has section_rows
  };
  const char* name;
  unsigned traits;
  std::vector<Field> fields;
  void (*check_lengths)(const Lengths& lengths, const Structure& s);
  void (*check_contents)(Findings& all, const Structure& s);
  Coordinates (*coordinates)(const Structure& s);
  std::vector<Part> (*parts)(const Structure& s);  // for a sampled product
  std::vector<size_t> values = {}, index = {};     // the fields that are values, and those that are indices

  bool has(Trait trait) const { return (traits & trait) != 0; }
  bool is_value(size_t field) const { return fields[field].kind == FieldKind::values; }
  const char* index_name(size_t i) const { return fields[index[i]].name; }
};

TP_EXPORT const std::vector<FormatInfo>& all_formats();
inline const FormatInfo& info_of(Format format) { return all_formats()[size_t(format)]; }
Format format_of(const char* op, Str name);

// A part of a matrix for a sampled product: sparse::SampledArgs.
struct Part {
  Tensor row_idx, col_idx, ptrs, row_nnz;
  bool transposed = false;  // rows and columns are exchanged
};

// A matrix for a product: the Args of its format.
struct Stored {
  const Structure& structure;
  const Tensors& values;
  Tensor perm;      // if defined, the permutation of the coordinates that sorts them by row
  bool row_sorted;  // whether they are sorted without it
  const Tensor& operator[](size_t i) const { return structure[i]; }
};
#define FORMAT(name, ...) void give_structure(spmv_##name::Args& args, const Stored& s);
#include "sparse/formats.def"
#undef FORMAT

// Checks dtypes, devices, dimensions and lengths, without reading the contents of tensors. In CSC, the pointers
// determine the number of columns.
void check_structure(const char* op, const Structure& s);
// The same for one of several matrices in CSR, whose index tensors must have the properties of A's row pointers.
void check_csr(const char* op, const Structure& s, const Tensor& a_row_ptrs);
// Checks every index and pointer; waits for the device, once or a few times. An IndexError or a ValueError names the
// first wrong one.
void check_index_values(const char* op, const Structure& s);

// A permutation of the entries for products. In its order, row (or column) i has the entries perm[ptrs[i]] to
// perm[ptrs[i + 1] - 1], and `other` holds their columns (or rows). If there are stages, `origin` is `other` in storage
// order (sparse/sparse.h). All tensors are contiguous.
struct Plan {
  Tensor ptrs, perm, other, stages, origin;
};

// A plan as the user gives it: ptrs [n + 1], and perm [entries], or [2, entries] with `other` in the second row.
// Further rows may hold the stages, 8 bytes per entry, and `origin`.
void check_plan(const char* op, const Structure& s, bool by_rows, const Tensor& ptrs, const Tensor& perm);
// Returns the given plan, or builds one on the device.
Plan plan_of(const char* op, const Structure& s, bool by_rows, const OptionalTensor& ptrs, const OptionalTensor& perm);
inline Coordinates coordinates(const Structure& s) { return info_of(s.format).coordinates(s); }
// The segment that each of n positions belongs to.
Tensor segments(const Tensor& ptrs, int64_t n);
// 0 to n - 1, with the dtype and device of the indices.
inline Tensor arange_like(const Tensor& like, int64_t n) { return at::arange(n, like.options()); }
// A stable order by keys from 0 to n; it sorts only by the bits that such keys need.
Tensor order_by(const Tensor& keys, const SymInt& n, Str algorithm = "auto");

}  // namespace tp
