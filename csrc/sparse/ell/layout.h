// ELL: consecutive entries of a row are `rows` elements apart.
#pragma once
#include "sparse/rows.h"

namespace tp::sparse {

struct Ell {
  using Args = EllArgs;
  static constexpr bool padded = true, permuted = false, planned = false, sectioned = false;
  static void check(const Args&, Context&) {}
  template <class B>
  TP_HD static Walk walk(const B& b, int64_t position) {
    return {b.length(position, b.a.width), position, b.a.rows};
  }
};

}  // namespace tp::sparse
