// JDS: entry j of the row at a position is in diagonal j.
#pragma once
#include "sparse/rows.h"

namespace tp::sparse {

// Checks that no diagonal is longer than the one before it or than the number of rows.
template <class I>
void check_diagonals(const JdsArgs& a, const I* p) {
  int64_t most = a.rows;
  for (int64_t i = 0; i < a.width; ++i) {
    const int64_t length = int64_t(p[i + 1]) - int64_t(p[i]);
    if (length > most) {
      fail(ErrorKind::value, a.op, ": diag_ptrs[", i + 1, "] is ", int64_t(p[i + 1]),
           ", which makes this diagonal longer than the one before, or than there are rows");
    }
    most = length;
  }
}

struct Jds {
  using Args = JdsArgs;
  static constexpr bool padded = false, permuted = true, planned = false, sectioned = false;
  static void check(const Args& a, Context& context) {
    with_pointers(a, a.ptrs, context, [&](const auto* p) {
      check_pointers(a.op, "diag_ptrs", p, a.width + 1, a.entries, false, context);
      check_diagonals(a, p);
    });
  }
  struct Diagonals {
    int64_t count, position;
    template <class B>
    TP_HD int64_t at(const B& b, int64_t j) const {
      return b.pointer(j) + position;
    }
  };
  // Later diagonals are never longer, so the diagonals that reach a position come first.
  template <class B>
  TP_HD static Diagonals walk(const B& b, int64_t position) {
    int64_t low = 0, high = b.a.width;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (b.pointer(middle + 1) - b.pointer(middle) > position) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return {low, position};
  }
};

}  // namespace tp::sparse
