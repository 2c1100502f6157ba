// M::combine without branches where the elements decide it: for extrema, so that no processor has to predict which is
// greater, and loops over them run on vectors.
#pragma once
#include "core/op.h"

namespace tp::segmented {

template <class M, class A>
A combine(A earlier, A later) {
  if constexpr (M::id == OpId::max) {
    return (earlier >= later) | (earlier != earlier) ? earlier : later;
  } else if constexpr (M::id == OpId::min) {
    return (earlier <= later) | (earlier != earlier) ? earlier : later;
  } else {
    return M::combine(earlier, later);
  }
}

}  // namespace tp::segmented
