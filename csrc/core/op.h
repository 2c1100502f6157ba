// Monoids: an associative combine and its identity. Operands always arrive in sequence order, combine(earlier, later):
// the affine maps below do not commute, and whoever swaps the two is found out by them.
#pragma once
#include <limits>

#include "core/dtype.h"

namespace tp {

enum class OpId : int8_t { sum, prod, max, min, affine };

namespace detail {
template <class A>
TP_HD constexpr A lowest() {
  return std::numeric_limits<A>::has_infinity ? -std::numeric_limits<A>::infinity() : std::numeric_limits<A>::lowest();
}
template <class A>
TP_HD constexpr A highest() {
  return std::numeric_limits<A>::has_infinity ? std::numeric_limits<A>::infinity() : std::numeric_limits<A>::max();
}
}  // namespace detail

template <class A>
struct Sum {
  static constexpr OpId id = OpId::sum;
  using Acc = A;
  TP_HD static A identity() { return A(0); }
  TP_HD static A combine(A earlier, A later) { return earlier + later; }
};

template <class A>
struct Prod {
  static constexpr OpId id = OpId::prod;
  using Acc = A;
  TP_HD static A identity() { return A(1); }
  TP_HD static A combine(A earlier, A later) { return earlier * later; }
};

// NaN wins, the earlier of two; of equal values the earlier wins. So gradients go to the first of equals.
template <class A>
struct Max {
  static constexpr OpId id = OpId::max;
  using Acc = A;
  TP_HD static A identity() { return detail::lowest<A>(); }
  TP_HD static A combine(A earlier, A later) { return earlier >= later || earlier != earlier ? earlier : later; }
};

template <class A>
struct Min {
  static constexpr OpId id = OpId::min;
  using Acc = A;
  TP_HD static A identity() { return detail::highest<A>(); }
  TP_HD static A combine(A earlier, A later) { return earlier <= later || earlier != earlier ? earlier : later; }
};

// The map h -> a h + b; combine composes: first the earlier map, then the later one. It is the monoid of linear
// recurrences (003, "solving recurrences") and, as 2x2 matrices do, it does not commute.
template <class A>
struct AffineMap {
  A a, b;
};

template <class A>
struct Affine {
  static constexpr OpId id = OpId::affine;
  using Acc = AffineMap<A>;
  TP_HD static Acc identity() { return {A(1), A(0)}; }
  TP_HD static Acc combine(Acc earlier, Acc later) { return {later.a * earlier.a, later.a * earlier.b + later.b}; }
};

// A monoid template as a value, to hand it to a generic lambda.
template <template <class> class M>
struct MonoidOf {
  template <class A>
  using of = M<A>;
};

}  // namespace tp
