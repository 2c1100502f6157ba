// CSR: the entries of a row are contiguous.
#pragma once
#include "sparse/rows.h"

namespace tp::sparse {

struct Csr {
  using Args = CsrArgs;
  static constexpr bool padded = false, permuted = false, planned = true, sectioned = false;
  // The entries of a plan do not include padding, which comes last.
  static void check(const Args& a, Context& context) {
    const bool plan = a.perm != nullptr;
    with_pointers(a, a.ptrs, context, [&](const auto* p) {
      check_pointers(a.op, plan ? "plan_ptrs" : "row_ptrs", p, a.rows + 1, a.entries, plan, context);
    });
  }
  template <class B>
  TP_HD static Walk walk(const B& b, int64_t position) {
    const int64_t begin = b.pointer(position);
    return {tp::max(int64_t(0), b.pointer(position + 1) - begin), begin, 1};
  }
};

}  // namespace tp::sparse
