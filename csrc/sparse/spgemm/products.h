// The products of entries of A and B, in the order of the entries of A: the factors of each, and its entry of C.
#pragma once
#include "core/partition_point.h"
#include "core/simt.h"
#include "sparse/spgemm/rows.h"

namespace tp::sparse {

// The structures, and the arrays that tell the factors of each product.
template <class I>
struct Lists {
  const I *a_ptrs, *a_idx, *b_ptrs, *b_idx, *c_ptrs, *c_idx;
  const int64_t* before;  // [a_entries + 1]: where the products of each entry of A begin
  const I* owner;         // [products]
  int64_t a_entries, b_entries, c_entries, rows, inner, products;
  Wanted wanted;

  template <class Block>
  TP_HD auto bind(Block& block) const;
};

template <class I, class Index, class Long>
struct BoundLists {
  const Lists<I>& n;
  Index a_ptrs, a_idx, b_ptrs, b_idx, c_ptrs, c_idx, owner;
  Long before;

  // The entry of B of product p of entry e of A.
  TP_HD int64_t entry_of_b(int64_t p, int64_t e) const {
    const int64_t k = a_idx[e], first = before[e], begin = b_ptrs[k];
    return begin + (p - first);
  }
  // The row of entry e of A: the last row that begins at e or before.
  TP_HD int64_t row_of(int64_t e) const {
    return partition_point(int64_t(0), n.rows, [&](int64_t i) { return int64_t(a_ptrs[i]) <= e; }) - 1;
  }
  // The first entry of row i of C whose column is not less than the given one, and whether it is equal.
  TP_HD int64_t entry_of_c(int64_t i, int64_t column, bool& found) const {
    const int64_t begin = c_ptrs[i], end = c_ptrs[i + 1];
    const int64_t low = partition_point(begin, end, [&](int64_t h) { return int64_t(c_idx[h]) < column; });
    const int64_t there = low < end ? int64_t(c_idx[low]) : -1;
    found = there == column;
    return low;
  }
};

template <class I>
template <class Block>
TP_HD auto Lists<I>::bind(Block& block) const {
  const auto index = [&](const char* name, const I* data, int64_t size) { return block.global(name, data, size); };
  const auto a = index("a_row_ptrs", a_ptrs, rows + 1);
  const auto b = block.global("before", before, a_entries + 1);
  return BoundLists<I, std::decay_t<decltype(a)>, std::decay_t<decltype(b)>>{*this,
                                                                             a,
                                                                             index("a_col_idx", a_idx, a_entries),
                                                                             index("b_row_ptrs", b_ptrs, inner + 1),
                                                                             index("b_col_idx", b_idx, b_entries),
                                                                             index("c_row_ptrs", c_ptrs, rows + 1),
                                                                             index("c_col_idx", c_idx, c_entries),
                                                                             index("owner", owner, products),
                                                                             b};
}

}  // namespace tp::sparse
