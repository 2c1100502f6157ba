// The two stages on the host: multiply all entries, storing the products in row order, then sum the rows. Every index
// is checked where it is used.
#pragma once
#include <algorithm>

#include "sparse/matrix.h"
#include "sparse/pointers.h"

namespace tp::sparse {

// Checks that all runs consist of whole octets.
inline void check_runs(const BlockedArgs& a, Context& context) {
  const auto check = [&](const char* name, const void* data, int64_t n) {
    with_pointers(a, data, context, [&](const auto* p) {
      check_pointers(a.op, name, p, n, a.entries, false, context);
      for (int64_t i = 0; i < n; ++i) {
        if (p[i] % octet != 0) {
          fail(ErrorKind::value, a.op, ": ", name, "[", i, "] is ", int64_t(p[i]), ", not a multiple of 8");
        }
      }
    });
  };
  check("block_ptrs", a.block_ptrs, a.blocks + 1);
  check("bin_ptrs", a.bin_ptrs, a.bins + 1);
  with_pointers(a, a.ptrs, context, [&](const auto* p) {
    check_pointers(a.op, "row_ptrs", p, a.rows + 1, a.bins * bin_entries, true, context);
  });
}

template <class M>
class BlockedStages {
  using T = typename M::T;
  using I = typename M::I;
  using Acc = typename M::Acc;
  using Bound = decltype(std::declval<M>().bind(simt::Pointers{}));

 public:
  BlockedStages(const M& matrix, Context& context)
      : b_(matrix.bind(simt::Pointers{})),
        products_(context.workspace<Acc>(b_.a.entries)),
        entries_(context.workspace<Acc>(b_.a.bins * bin_entries)) {
    std::fill(products_, products_ + b_.a.entries, Acc(0));  // block_ptrs may leave out some entries
  }

  // Multiplies the entries of a block, for column c of X, and stores the products in the order of the bins.
  void multiply_block(int64_t block, int64_t c) {
    const BlockedArgs& a = b_.a;
    const int64_t first = block * block_columns, octets = a.entries / octet;
    const int64_t columns = tp::min(a.cols - first, int64_t(block_columns));
    const auto* const to = static_cast<const I*>(a.octet_idx);
    const int64_t end = bound(a.block_ptrs, block + 1, a.entries);
    for (int64_t at = bound(a.block_ptrs, block, a.entries); at < end; ++at) {
      const int64_t column = a.local_col[at], octet_to = to[at / octet];
      if (!usable(octet_to, octets, a.op, "octet_idx", at / octet)) continue;
      Acc& product = products_[octet_to * octet + at % octet];
      product = Acc(0);
      if (column == -1 || !usable(column, columns, a.op, "col_idx", at)) continue;
      product = b_.product(at, first + column, c);
    }
  }
  // Stores the products of a bin in row order.
  void order_bin(int64_t bin) {
    const BlockedArgs& a = b_.a;
    Acc* const entries = entries_ + bin * bin_entries;
    std::fill(entries, entries + bin_entries, Acc(0));
    const int64_t end = bound(a.bin_ptrs, bin + 1, a.entries);
    for (int64_t at = bound(a.bin_ptrs, bin, a.entries); at < end; ++at) {
      const int64_t entry = a.entry_idx[at];
      if (entry != -1 && usable(entry, bin_entries, a.op, "entry_idx", at)) entries[entry] = products_[at];
    }
  }
  void sum_row(int64_t row, int64_t c) {
    const int64_t most = b_.a.bins * bin_entries, end = bound(b_.a.ptrs, row + 1, most);
    Acc sum(0);
    for (int64_t at = bound(b_.a.ptrs, row, most); at < end; ++at) sum += entries_[at];
    b_.store(row, c, sum);
  }

 private:
  static int64_t bound(const void* pointers, int64_t i, int64_t most) {
    return tp::max(int64_t(0), tp::min(int64_t(static_cast<const I*>(pointers)[i]), most));
  }

  Bound b_;
  Acc *products_, *entries_;
};

}  // namespace tp::sparse
