// Checks of a matrix in CSR on the device: whether pointers and columns are in range, and whether columns are in order,
// by equal shares of the entries. No access is out of bounds, whatever the pointers hold, but only valid ones tell
// which row an entry is in.
#pragma once
#include "core/partition_point.h"
#include "core/simt.h"
#include "sparse/matrix.h"

namespace tp::sparse {

constexpr int entry_threads = 256, entries_per_block = 8 * entry_threads;

// Calls f(entry, row) for all entries, where row() finds the entry's row, among those that its block's entries are in.
template <class Block, class Ptrs, class F>
TP_HD void for_each_entry(Block& block, const char* phase, const Ptrs& ptrs, int64_t rows, int64_t entries, F f) {
  const auto ends = block.template shared<int64_t>("ends", 2);
  const auto row_of = [&](int64_t low, int64_t high, int64_t e) {
    return partition_point(low, high, [&](int64_t i) { return int64_t(ptrs[i + 1]) <= e; });
  };
  for (int64_t first = block.index().x * entries_per_block; first < entries;
       first += block.grid().x * entries_per_block) {
    const int64_t end = tp::min(first + entries_per_block, entries);
    block.phase("rows", [&](int t) {
      if (t < 2) ends[t] = row_of(0, rows, t == 0 ? first : end - 1);
    });
    const int64_t low = block.uniform("first row", [&] { return int64_t(ends[0]); });
    const int64_t high = block.uniform("last row", [&] { return int64_t(ends[1]); });
    block.phase(phase, [&](int t) {
      for (int64_t e = first + t; e < end; e += entry_threads) f(e, [&] { return row_of(low, high, e); });
    });
  }
}

// Tells whether pointer i of a matrix is wrong: they are 0 first and the number of entries last, and never decrease.
template <class Ptrs>
TP_HD bool wrong_pointer(const Ptrs& ptrs, int64_t i, int64_t rows, int64_t entries) {
  const int64_t here = ptrs[i], before = i > 0 ? int64_t(ptrs[i - 1]) : 0;
  return here < before || (i == 0 && here != 0) || (i == rows && here != entries);
}

// Launches a kernel that calls for_each_entry.
template <class Kernel>
void launch_for_each_entry(Context& context, const char* name, int64_t entries, const Kernel& kernel) {
  const int64_t blocks = tp::min(ceil_div(entries, int64_t(entries_per_block)), max_grid);
  simt::launch(context, name, {blocks}, entry_threads, 2 * int64_t(sizeof(int64_t)), kernel);
}

// Sets *outside if a column is out of range, *disordered if it is less than the one before it in its row, and *repeated
// if it is equal to that.
template <class I>
struct CheckColumns {
  const I *ptrs, *idx;
  int64_t rows, cols, entries;
  boolean *outside, *disordered, *repeated;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto row_ptrs = block.global("row_ptrs", ptrs, rows + 1);
    const auto columns = block.global("col_idx", idx, entries);
    const auto to_outside = block.global("outside", outside, 1, simt::Sharing::idempotent);
    const auto to_disordered = block.global("disordered", disordered, 1, simt::Sharing::idempotent);
    const auto to_repeated = block.global("repeated", repeated, 1, simt::Sharing::idempotent);
    for_each_entry(block, "columns", row_ptrs, rows, entries, [&](int64_t e, auto row) {
      const int64_t column = columns[e], before = e > 0 ? int64_t(columns[e - 1]) : -1;
      if (!inside(column, cols)) to_outside[0] = boolean(true);
      if (before < column) return;
      const int64_t begin = row_ptrs[row()];  // only there may it be less than the column before it
      if (begin == e) return;
      if (before == column) {
        to_repeated[0] = boolean(true);
      } else {
        to_disordered[0] = boolean(true);
      }
    });
  }
};

}  // namespace tp::sparse
