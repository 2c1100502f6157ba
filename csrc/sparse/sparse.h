// Sparse matrix times dense: y = A x (SpMV) and, with k columns, Y = A X (SpMM), in eight formats (chapter 14, and two
// beyond the book).
//
// Every format is a compromise:
// - COO is three lists in any order. Every entry knows its row, so any thread can take any entry; but several threads
//   may add to one element of y, which takes atomics.
// - CSR groups the entries by row. One thread per row needs no atomics, but neighbouring threads read far apart, and a
//   warp waits for its longest row. The rung merge_path gives every tile the same share of entries and row ends,
//   whatever the lengths of the rows.
// - CSC is the CSR of the transpose. Each element of x is read once, but products are scattered to y, which takes
//   atomics again.
// - ELL pads all rows to the same length and stores them column by column. Neighbouring threads read neighbouring
//   entries, but padding costs memory and time.
// - HYB moves the ends of long rows to a COO tail.
// - JDS sorts the rows by length and needs no padding.
// - SELL (the chapter's sectioned JDS) divides the sorted rows into sections, each of which is an ELL with its own
//   width.
// - BLOCKED sorts the entries of a CSR by blocks of columns, so that each block of x fits in fast memory. It needs a
//   second pass to sum the rows.
//
// There is one ladder per format, for all dtypes, index types and k. An output is summed in the accumulator type of the
// dtype (float for half types); y0 is added last.
//
// Entry numbers are indices into `values`. In padded formats, entries beyond row_nnz and those with index -1 are
// padding.
//
// Index arrays may hold anything. Pointers are clamped. On the host, an index outside the matrix is an error
// (ErrorKind::index) that names the array and the position; on the device, such an entry is skipped. Padding is never
// used as data: x may hold NaN where no entry points.
//
// formats.def lists the formats. Here are the arrays of each, where `bind` gives their names and lengths, and its
// ladder. docs/extend.md says what else a new format takes.
#pragma once
#include "core/ladder.h"

namespace tp::sparse {

// The arguments of a product, whatever the format.
struct Args {
  const char* op;  // the operator's name in error messages
  const void* values;
  int64_t entries, rows, cols;
  int64_t k;           // columns of X and Y
  const void* x;       // [cols, k]
  const void* y0;      // [rows, k] or null
  void* sums;          // [rows, k] or null; if given, it receives the sums in accumulator type, and y is not written
  const void* before;  // [rows, k] or null: accumulators to which the product is added before y0
  void* y;             // [rows, k]; every element is written
  DType dtype;         // of values, x, y0, y
  bool long_index;     // all indices and pointers are int64, else int32
};

// The type of index(name, data, length): an array of indices as a block sees it.
template <class F>
using bound_t = decltype(std::declval<const F&>()("", static_cast<const void*>(nullptr), int64_t(0)));

// A list of entries in any order. On the device, the rungs without atomics need either sorted rows or perm, which lists
// the entries in a stable order by row; row_idx and col_idx then stay in the order of `values`.
template <class Index = const void*>
struct CooArrays {
  Index row_idx, col_idx, perm;  // [entries] each; perm may be null
};
struct CooArgs : Args, CooArrays<> {
  bool row_sorted;  // the rows never decrease

  template <class F>
  TP_HD CooArrays<bound_t<F>> bind(const F& index) const {
    return {index("row_idx", row_idx, entries), index("col_idx", col_idx, entries), index("plan_perm", perm, entries)};
  }
};

// Row r consists of entries ptrs[r] to ptrs[r + 1] - 1.
//
// With perm, the arguments are a plan: entry p of the plan is entry perm[p] of `values`, and its column is col_idx[p],
// or col_idx[perm[p]] with perm_indexes. The transposed product of any format is the product of such a plan: ptrs are
// over the columns, perm is the entries in a stable order by column, and col_idx is their rows in that order.
//
// If the values do not fit in the cache, every access through perm is a random access to memory. A plan may therefore
// come with `stages`, which reach the same order without random access: first from tiles of entries in storage order to
// bins in the order of the plan, then within each bin (csr/staged_tiles.cuh).
template <class Index = const void*>
struct CsrArrays {
  Index ptrs, col_idx, perm;  // [rows + 1], [entries], [entries] or null
};
struct CsrArgs : Args, CsrArrays<> {
  bool perm_indexes;
  const void *stages, *origin;  // with perm, or null: 8 bytes per entry; origin: the columns in the order of `values`

  template <class F>
  TP_HD CsrArrays<bound_t<F>> bind(const F& index) const {
    return {index("ptrs", ptrs, rows + 1), index("col_idx", col_idx, entries), index("plan_perm", perm, entries)};
  }
};

// Column c consists of entries ptrs[c] to ptrs[c + 1] - 1.
template <class Index = const void*>
struct CscArrays {
  Index ptrs, row_idx;  // [cols + 1], [entries]
};
struct CscArgs : Args, CscArrays<> {
  template <class F>
  TP_HD CscArrays<bound_t<F>> bind(const F& index) const {
    return {index("ptrs", ptrs, cols + 1), index("row_idx", row_idx, entries)};
  }
};

// Entry j of row r has index j * rows + r. There are width * rows entries.
template <class Index = const void*>
struct EllArrays {
  Index row_nnz, col_idx;  // [rows], [width, rows]
};
struct EllArgs : Args, EllArrays<> {
  int64_t width;

  template <class F>
  TP_HD EllArrays<bound_t<F>> bind(const F& index) const {
    return {index("row_nnz", row_nnz, rows), index("col_idx", col_idx, entries)};
  }
};

// An ELL, and a COO of the entries that its rows have no room for.
struct HybArgs : EllArgs {
  const void *tail_row_idx, *tail_col_idx, *tail_values;  // [tail_entries]
  int64_t tail_entries;
  bool row_sorted;  // the rows of the tail never decrease
};

// The rows are sorted by length, and slot i holds row row_perm[i]. Diagonal j holds the j-th entry of each row that has
// one; these are the first ptrs[j + 1] - ptrs[j] slots.
template <class Index = const void*>
struct JdsArrays {
  Index ptrs, row_perm, col_idx;  // [width + 1], [rows], [entries]
};
struct JdsArgs : Args, JdsArrays<> {
  int64_t width;  // the number of diagonals

  template <class F>
  TP_HD JdsArrays<bound_t<F>> bind(const F& index) const {
    return {index("ptrs", ptrs, width + 1), index("row_perm", row_perm, rows), index("col_idx", col_idx, entries)};
  }
};

// Slot i holds row row_perm[i], with row_nnz[i] entries. In a section of h rows (h is section_rows, or less in the last
// section) that begins at slot s and entry p, entry j of slot i has index p + j * h + (i - s).
template <class Index = const void*>
struct SellArrays {
  Index ptrs, row_perm, row_nnz, col_idx;  // [sections + 1], [rows], [rows], [entries]
};
struct SellArgs : Args, SellArrays<> {
  int64_t section_rows;

  TP_HD int64_t sections() const { return (rows + section_rows - 1) / section_rows; }
  template <class F>
  TP_HD SellArrays<bound_t<F>> bind(const F& index) const {
    return {index("ptrs", ptrs, sections() + 1), index("row_perm", row_perm, rows), index("row_nnz", row_nnz, rows),
            index("col_idx", col_idx, entries)};
  }
};

// `ptrs` index the entries in the order of rows, as those of a CSR. In that order, bin_entries consecutive entries are
// a bin; block_columns consecutive columns are a block. The entries of one block and one bin are a run, padded to whole
// octets. Runs are stored in two orders. By block, and in a block by bin (block_ptrs): values and local_col, the column
// within the block. By bin, and in a bin by block (bin_ptrs): entry_idx, the index of the entry within its bin. Octet i
// of the first order is octet octet_idx[i] of the second. Padding is -1 in both.
constexpr int bin_entries = 1 << 14, block_columns = 1 << 14, octet = 8;
template <class Index = const void*>
struct BlockedArrays {
  Index ptrs, block_ptrs, bin_ptrs, octet_idx;  // [rows + 1], [blocks + 1], [bins + 1], [entries / octet]
};
struct BlockedArgs : Args, BlockedArrays<> {
  const int16_t *local_col, *entry_idx;  // [entries]
  int64_t blocks, bins;

  template <class F>
  TP_HD BlockedArrays<bound_t<F>> bind(const F& index) const {
    return {index("ptrs", ptrs, rows + 1), index("block_ptrs", block_ptrs, blocks + 1),
            index("bin_ptrs", bin_ptrs, bins + 1), index("octet_idx", octet_idx, entries / octet)};
  }
};

// The gradient of the values: out[i] = dot(gy[row of i, :], x[column of i, :]), and 0 for padding, whose row or column
// is -1. The column of entry i is col_idx[i]. Its row is row_idx[i]; or, if that is null, the r with ptrs[r] <= i <
// ptrs[r + 1]; or, if both are null (ELL), i % rows, where entry i is padding if row_nnz is given and i / rows >=
// row_nnz[i % rows].
struct SampledArgs {
  const char* op;
  const void *row_idx, *col_idx, *ptrs, *row_nnz;
  int64_t entries, rows, cols, k;
  const void *gy, *x;  // [rows, k], [cols, k]
  void* out;           // [entries]
  DType dtype;
  bool long_index;
};

}  // namespace tp::sparse

// Each ladder declares `choose`, which returns the rung that "auto" means.
#define TP_SPARSE_LADDER_END const char* choose(const Args&, const Device&);

namespace tp::spmv_coo {
using Args = sparse::CooArgs;
#define TP_RUNGS "sparse/coo/rungs.def"
#include "core/ladder.inc"
TP_SPARSE_LADDER_END
}  // namespace tp::spmv_coo

namespace tp::spmv_csr {
using Args = sparse::CsrArgs;
#define TP_RUNGS "sparse/csr/rungs.def"
#include "core/ladder.inc"
TP_SPARSE_LADDER_END
}  // namespace tp::spmv_csr

namespace tp::spmv_csc {
using Args = sparse::CscArgs;
#define TP_RUNGS "sparse/csc/rungs.def"
#include "core/ladder.inc"
TP_SPARSE_LADDER_END
}  // namespace tp::spmv_csc

namespace tp::spmv_ell {
using Args = sparse::EllArgs;
#define TP_RUNGS "sparse/ell/rungs.def"
#include "core/ladder.inc"
TP_SPARSE_LADDER_END
}  // namespace tp::spmv_ell

namespace tp::spmv_hyb {
using Args = sparse::HybArgs;
#define TP_RUNGS "sparse/hyb/rungs.def"
#include "core/ladder.inc"
TP_SPARSE_LADDER_END
}  // namespace tp::spmv_hyb

namespace tp::spmv_jds {
using Args = sparse::JdsArgs;
#define TP_RUNGS "sparse/jds/rungs.def"
#include "core/ladder.inc"
TP_SPARSE_LADDER_END
}  // namespace tp::spmv_jds

namespace tp::spmv_sell {
using Args = sparse::SellArgs;
#define TP_RUNGS "sparse/sell/rungs.def"
#include "core/ladder.inc"
TP_SPARSE_LADDER_END
}  // namespace tp::spmv_sell

namespace tp::spmv_blocked {
using Args = sparse::BlockedArgs;
#define TP_RUNGS "sparse/blocked/rungs.def"
#include "core/ladder.inc"
TP_SPARSE_LADDER_END
}  // namespace tp::spmv_blocked

namespace tp::sampled_product {
using Args = sparse::SampledArgs;
#define TP_RUNGS "sparse/sampled_product/rungs.def"
#include "core/ladder.inc"
TP_SPARSE_LADDER_END
}  // namespace tp::sampled_product

#undef TP_SPARSE_LADDER_END
