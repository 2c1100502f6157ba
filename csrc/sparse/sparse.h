// Sparse matrix times dense: y = A x (SpMV) and, with k columns, Y = A X (SpMM), in eight formats (chapter 14, and two
// beyond the book).
//
// Every format is a compromise. COO is three lists in any order: every entry knows its row, so any thread can take any
// entry, but several threads may add to one element of y, which takes atomics. CSR groups the entries by row: one
// thread per row needs no atomics, but neighbouring threads read far apart, and the longest row decides. ELL pads all
// rows to the same length and stores them column by column: neighbouring threads read neighbouring entries, at the
// price of the padding. HYB moves the end of long rows to a COO tail. JDS sorts the rows by length and needs no
// padding. SELL (the chapter's sectioned JDS) divides the sorted rows into sections, each an ELL of its own width. CSC
// is the CSR of the transpose: each element of x is read once, but products are scattered to y, hence atomics again.
// `merge_path` gives every tile of a CSR matrix the same share of entries and row ends, whatever the lengths of its
// rows. BLOCKED sorts the entries of a CSR by blocks of columns, so that each block of x fits in fast memory, and needs
// a second pass to sum the rows.
//
// There is one ladder per format, for all dtypes, index types and k. An output is summed in the accumulator of the
// dtype (float for half types); y0 is added last.
//
// Entries are indices into `values`. An entry beyond row_nnz, and every index of -1 in a padded format, is padding.
//
// All arrays may hold anything. Pointers are clamped. An index outside the matrix is an error (ErrorKind::index) that
// names the array and the position on the host, and is skipped on the device. Padding is never used as data: x may hold
// NaN where no entry points.
//
// formats.def is the list of the formats. What each is made of stands here: its arrays, whose `bind` tells their names
// and lengths, and its ladder. docs/extend.md says what else a new format takes.
#pragma once
#include "core/ladder.h"

namespace tp::sparse {

// What a product takes in every format.
struct Args {
  const char* op;  // the operator's name in error messages
  const void* values;
  int64_t entries, rows, cols;
  int64_t k;           // columns of X and Y
  const void* x;       // [cols, k]
  const void* y0;      // [rows, k] or null
  void* sums;          // [rows, k] or null: accumulators that get the product instead of y
  const void* before;  // [rows, k] or null: accumulators to which the product is added before y0
  void* y;             // [rows, k]; every element is written
  DType dtype;         // of values, x, y0, y
  bool long_index;     // all indices and pointers are int64, else int32
};

// What `index` gives for (name, data, length): an array of indices as a block sees it.
template <class F>
using bound_t = decltype(std::declval<const F&>()("", static_cast<const void*>(nullptr), int64_t(0)));

// A list of entries in any order. On the device, the rungs without atomics need sorted rows or perm: the entries,
// stably sorted by row, while row_idx and col_idx stay in the order of `values`.
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

// Row r holds the entries ptrs[r] to ptrs[r + 1] - 1.
//
// With perm this is a plan: entry p in the order of the plan is entry perm[p] of `values`, and its index is col_idx[p],
// or col_idx[perm[p]] with perm_indexes. So the transposed product of any format is the product of a CSR plan: ptrs
// over columns, perm the entries stably sorted by column, col_idx their rows in that order.
//
// If the values do not fit in the cache, every access through perm is a random access to memory. So a plan may come
// with `stages`, which replace it without random access: from tiles of the entries in storage order to bins in the
// order of the plan, and then within the bins (csr/staged_tiles.cuh).
template <class Index = const void*>
struct CsrArrays {
  Index ptrs, col_idx, perm;  // [rows + 1], [entries], [entries] or null
};
struct CsrArgs : Args, CsrArrays<> {
  bool perm_indexes;
  const void *stages, *origin;  // with perm, or null: 8 bytes per entry; and the columns in the order of `values`

  template <class F>
  TP_HD CsrArrays<bound_t<F>> bind(const F& index) const {
    return {index("ptrs", ptrs, rows + 1), index("col_idx", col_idx, entries), index("plan_perm", perm, entries)};
  }
};

// Column c holds the entries ptrs[c] to ptrs[c + 1] - 1.
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

// Entry j of row r is j * rows + r, of width * rows entries.
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

// Diagonal j holds the j-th entries of the rows in the first ptrs[j + 1] - ptrs[j] slots, of which slot i has row
// row_perm[i].
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

// Slot i has row row_perm[i], of row_nnz[i] entries. In a section of h rows (section_rows, except the last) that begins
// at slot s and entry p, entry j of slot i is p + j * h + (i - s).
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

// ptrs lead into the entries in the order of rows, as those of a CSR. A bin is bin_entries of them, a block is
// block_columns columns; those of one block and one bin are a run, padded to whole octets. values and local_col (the
// column in its block) hold the runs by block (block_ptrs) and in a block by bins; entry_idx (which entry of its bin)
// holds them by bins (bin_ptrs) and in a bin by blocks. Octet i of the first order is octet octet_idx[i] of the second.
// Padding is -1 in both.
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
// is -1. The column of entry i is col_idx[i]. Its row is row_idx[i], or the r with ptrs[r] <= i < ptrs[r + 1], or i %
// rows if both arrays are null (ELL; with row_nnz, entry i is padding if i / rows >= row_nnz[i % rows]).
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

// Each ladder comes with a function that returns the rung that "auto" means.
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
