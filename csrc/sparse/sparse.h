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
// Entries are indices into `values`. The meaning of the fields in each format:
//   coo    row_idx, col_idx [entries]; row_sorted if the rows never decrease
//   csr    ptrs [rows + 1], col_idx [entries]; with perm see below
//   csc    ptrs [cols + 1], row_idx [entries]
//   ell    row_nnz [rows], col_idx, values [width, rows], entries = width * rows
//   hyb    the same as ell, and tail_row_idx, tail_col_idx, tail_values [tail_entries]; row_sorted is about the tail
//   jds    ptrs [width + 1] (diagonals), row_perm [rows]: the row in each slot; diagonal j holds the j-th entries of
//          the first ptrs[j + 1] - ptrs[j] slots
//   sell   ptrs [sections + 1], row_perm [rows], row_nnz [rows] (of the row in each slot), section_rows; entry j of
//          slot i in a section of h rows (section_rows, except the last) that begins at slot s and entry p
//          is p + j * h + (i - s)
//   blocked  ptrs [rows + 1], of entries in the order of rows, as of a csr. A bin is bin_entries of them, a block is
//          block_columns columns; those of one block and one bin are a run, padded to whole octets. values
//          and local_col [entries] (the column in its block) hold the runs by block (block_ptrs [blocks + 1]) and in a
//          block by bins; entry_idx [entries] (which entry of its bin) holds them by bins (bin_ptrs [bins + 1]) and in
//          a bin by blocks. Octet i of the first order is octet octet_idx[i] of the second. Padding is -1 in both.
// A plan makes a product use a permutation of the entries: entry p in the order of the plan is entry perm[p] of
// `values`, and its index is col_idx[p]. So the transposed product of any format is the product of a CSR plan: ptrs
// over columns, perm the entries stably sorted by column, col_idx their rows in that order. On the device, the COO
// rungs without atomics need sorted rows, or perm, the entries stably sorted by row; row_idx and col_idx stay in the
// order of `values` (perm_indexes). On the host no COO rung needs either.
//
// If the values do not fit in the cache, every access through perm is a random access to memory. So a plan may come
// with `stages`, which replace it without random access: from tiles of the entries in storage order to bins in the
// order of the plan, and then within the bins (csr/staged_tiles.cuh).
//
// All arrays may hold anything. Pointers are clamped. An index outside the matrix is an error (ErrorKind::index) that
// names the array and the position on the host, and is skipped on the device. Padding, which is everything beyond
// row_nnz and every index of -1 in a padded format, is never used as data: x may hold NaN where no entry points.
#pragma once
#include "core/ladder.h"

namespace tp::sparse {

constexpr int bin_entries = 1 << 14, block_columns = 1 << 14, octet = 8;  // blocked

struct Args {
  const char* op;  // the operator's name in error messages
  const void* values;
  const void *row_idx, *col_idx, *ptrs, *row_nnz, *row_perm, *perm;  // null where the format has none
  const void *stages, *origin;  // csr with perm, or null: 8 bytes per entry; and the columns in the order of `values`
  const void *tail_row_idx, *tail_col_idx, *tail_values;  // hyb
  const void *block_ptrs, *bin_ptrs, *octet_idx;          // blocked
  const int16_t *local_col, *entry_idx;
  int64_t blocks, bins;
  int64_t entries, tail_entries, rows, cols;
  int64_t width;         // ell, hyb: of the padded rows; jds: the number of diagonals
  int64_t section_rows;  // sell
  int64_t k;             // columns of X and Y
  const void* x;         // [cols, k]
  const void* y0;        // [rows, k] or null
  void* sums;            // [rows, k] or null: accumulators that get the product instead of y
  const void* before;    // [rows, k] or null: accumulators to which the product is added before y0
  void* y;               // [rows, k]; every element is written
  DType dtype;           // of values, x, y0, y
  bool long_index;       // all indices and pointers are int64, else int32
  bool row_sorted;       // coo, hyb
  bool perm_indexes;     // the index of the p-th entry of the plan is col_idx[perm[p]]
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
using sparse::Args;
#define TP_RUNGS "sparse/coo/rungs.def"
#include "core/ladder.inc"
TP_SPARSE_LADDER_END
}  // namespace tp::spmv_coo

namespace tp::spmv_csr {
using sparse::Args;
#define TP_RUNGS "sparse/csr/rungs.def"
#include "core/ladder.inc"
TP_SPARSE_LADDER_END
}  // namespace tp::spmv_csr

namespace tp::spmv_csc {
using sparse::Args;
#define TP_RUNGS "sparse/csc/rungs.def"
#include "core/ladder.inc"
TP_SPARSE_LADDER_END
}  // namespace tp::spmv_csc

namespace tp::spmv_ell {
using sparse::Args;
#define TP_RUNGS "sparse/ell/rungs.def"
#include "core/ladder.inc"
TP_SPARSE_LADDER_END
}  // namespace tp::spmv_ell

namespace tp::spmv_hyb {
using sparse::Args;
#define TP_RUNGS "sparse/hyb/rungs.def"
#include "core/ladder.inc"
TP_SPARSE_LADDER_END
}  // namespace tp::spmv_hyb

namespace tp::spmv_jds {
using sparse::Args;
#define TP_RUNGS "sparse/jds/rungs.def"
#include "core/ladder.inc"
TP_SPARSE_LADDER_END
}  // namespace tp::spmv_jds

namespace tp::spmv_sell {
using sparse::Args;
#define TP_RUNGS "sparse/sell/rungs.def"
#include "core/ladder.inc"
TP_SPARSE_LADDER_END
}  // namespace tp::spmv_sell

namespace tp::spmv_blocked {
using sparse::Args;
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
