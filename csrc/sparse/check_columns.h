// Checks the columns of a matrix in CSR on the device, in one pass over its entries.
#pragma once
#include "core/for_each.h"
#include "core/partition_point.h"
#include "sparse/matrix.h"

namespace tp::sparse {

// Sets *outside if a column is out of range, and *disordered unless the columns of each row increase strictly. The
// pointers are valid.
template <class I>
struct CheckColumns {
  const I *ptrs, *idx;
  int64_t rows, cols, entries;
  boolean *outside, *disordered;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto row_ptrs = block.global("row_ptrs", ptrs, rows + 1);
    const auto columns = block.global("col_idx", idx, entries);
    const auto to_outside = block.global("outside", outside, 1, simt::Sharing::idempotent);
    const auto to_disordered = block.global("disordered", disordered, 1, simt::Sharing::idempotent);
    simt::for_each(block, "columns", entries, [&](int64_t e) {
      const int64_t column = columns[e], before = e > 0 ? int64_t(columns[e - 1]) : -1;
      if (!inside(column, cols)) to_outside[0] = boolean(true);
      if (before < column) return;
      // It may be less than the column before it only where a row begins.
      const int64_t row = partition_point(int64_t(0), rows, [&](int64_t i) { return int64_t(row_ptrs[i]) < e; });
      const int64_t begin = row_ptrs[row];
      if (begin != e) to_disordered[0] = boolean(true);
    });
  }
};

}  // namespace tp::sparse
