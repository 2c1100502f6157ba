// Sparse matrix times dense: y = A x (SpMV) and, with k columns, Y = A X (SpMM), in eight formats (chapter 14, and two
// beyond).
//
// A format is a compromise. COO is three lists in any order: every entry knows its row, so a thread can take any entry,
// but two threads may meet in one element of y, and so it takes atomics. CSR groups the entries of a row: a thread a
// row needs no atomic, but neighbouring threads read far apart, and the longest row decides. ELL pads all rows to one
// length and stores them column by column: neighbours read side by side, at the price of the padding. HYB cuts the long
// rows off into a COO tail; JDS sorts the rows by their length and so needs no padding at all; SELL (the chapter's
// sectioned JDS) cuts the sorted rows into sections, each an ELL of its own width. CSC is the CSR of the transpose:
// good where x is known and y is sought by scattering, hence atomics again. `merge_path` gives every tile of a CSR the
// same share of entries and row ends, whatever the rows look like. BLOCKED sorts the entries of a CSR by blocks of
// columns, so that x is read in blocks that lie near the processor, and takes a second pass to sum the rows.
//
// One ladder a format, for all of dtype, index type and k. An output is summed in the accumulator of the dtype (float
// for half types); y0 is added last.
//
// Entries are positions in `values`. What the fields mean to each format:
//   coo    row_idx, col_idx [entries]; row_sorted if the rows never decrease
//   csr    ptrs [rows + 1], col_idx [entries]; with perm see below
//   csc    ptrs [cols + 1], row_idx [entries]
//   ell    row_nnz [rows], col_idx, values [width, rows], entries = width * rows
//   hyb    the same as ell, and tail_row_idx, tail_col_idx, tail_values [tail_entries]; row_sorted speaks of the tail
//   jds    ptrs [width + 1] (diagonals), row_perm [rows]: the row at each place; diagonal j holds the j-th entries of
//          the first ptrs[j + 1] - ptrs[j] places
//   sell   ptrs [sections + 1], row_perm [rows], row_nnz [rows] (of the row at each place), section_rows; entry j of
//          place i of a section of h rows (all have section_rows, but for the last) that begins at place s and entry p
//          is p + j * h + (i - s)
//   blocked  ptrs [rows + 1], of entries in the order of rows, as of a csr. A bin is bin_entries of them, a block is
//          block_columns columns; those of one block and one bin are a run, padded to whole octets of places. values
//          and local_col [entries] (the column in its block) hold the runs by blocks (block_ptrs [blocks + 1]) and in a
//          block by bins; entry_idx [entries] (which entry of its bin) holds them by bins (bin_ptrs [bins + 1]) and in
//          a bin by blocks. Octet i of the first order is octet octet_idx[i] of the second. Padding is -1 in both.
// A plan lets a product go through a permutation of the entries: entry p of the walk is entry perm[p] of `values`, and
// its index is col_idx[p]. So the transposed product of any format is the CSR of a plan: ptrs over columns, perm the
// entries in a stable order of columns, col_idx their rows in that order. On the device the rungs of coo without
// atomics need sorted rows, or perm, the entries in a stable order of rows; row_idx and col_idx stay in the order of
// `values` (perm_indexes). On the host no rung of coo needs either.
//
// Where the values do not fit the cache, every step through perm is an access to memory of its own. So a plan may come
// with `stages`, which lead the same way without random access: from tiles of the entries in the order of storage to
// bins in the order of the plan, and inside them (csr/staged_tiles.cuh).
//
// Everything may hold anything. Positions are clamped. An index outside the matrix is an error (ErrorKind::index) that
// names the array and the place where it is met on the host, and is skipped on the device. Padding, that is what lies
// beyond row_nnz and an index of -1 in a padded format, is never read as data: x may hold NaN where no entry points.
#pragma once
#include "core/ladder.h"

namespace tp::sparse {

constexpr int bin_entries = 1 << 14, block_columns = 1 << 14, octet = 8;  // blocked

struct Args {
  const char* op;  // the operator, for messages
  const void* values;
  const void *row_idx, *col_idx, *ptrs, *row_nnz, *row_perm, *perm;  // null where the format has none
  const void *stages, *origin;  // csr with perm, or null: 8 bytes an entry; and the columns in the order of `values`
  const void *tail_row_idx, *tail_col_idx, *tail_values;  // hyb
  const void *block_ptrs, *bin_ptrs, *octet_idx;          // blocked
  const int16_t *local_col, *entry_idx;
  int64_t blocks, bins;
  int64_t entries, tail_entries, rows, cols;
  int64_t width;         // ell, hyb: of the padded rows; jds: number of diagonals
  int64_t section_rows;  // sell
  int64_t k;             // columns of X and Y
  const void* x;         // [cols, k]
  const void* y0;        // [rows, k] or null
  void* sums;            // [rows, k] or null: accumulators that get the product, and nothing else, in place of y
  const void* before;    // [rows, k] or null: accumulators to which the product is added before y0 is
  void* y;               // [rows, k]; written whole
  DType dtype;           // of values, x, y0, y
  bool long_index;       // all indices and pointers are int64, else int32
  bool row_sorted;       // coo, hyb
  bool perm_indexes;     // the index of entry p of the walk is col_idx[perm[p]]
};

// The gradient of the values: out[i] = dot(gy[row of i, :], x[column of i, :]), 0 for padding, which is a row or column
// of -1. The column of entry i is col_idx[i]; its row is row_idx[i], or the r with ptrs[r] <= i < ptrs[r + 1], or
// i % rows where both are null (ELL; with row_nnz, entry i is padding if i / rows >= row_nnz[i % rows]).
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

// Each with the rung that "auto" means.
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
