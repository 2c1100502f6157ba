// M::combine without branches for extrema: no branch predictor can tell which element is greater, and loops without
// branches vectorize. Extrema take vectors, too.
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
