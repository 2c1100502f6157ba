// Monoids: an associative combine and its identity. Operands always arrive in sequence order, as combine(earlier,
// later). The affine maps below do not commute, so tests with them detect swapped operands.
#pragma once
#include <cmath>
#include <limits>

#include "core/dtype.h"

namespace tp {

enum class OpId : int8_t {
  sum,
  prod,
  max,
  min,
  affine,
  mean,
  argmax,
  argmin,
  logsumexp,
  variance,
  deviation,
  bitwise_and,
  bitwise_or,
  bitwise_xor
};

namespace detail {
template <class A>
TP_HD constexpr A lowest() {
  return std::numeric_limits<A>::has_infinity ? -std::numeric_limits<A>::infinity() : std::numeric_limits<A>::lowest();
}
template <class A>
TP_HD constexpr A highest() {
  return std::numeric_limits<A>::has_infinity ? std::numeric_limits<A>::infinity() : std::numeric_limits<A>::max();
}
// a / b, with an error of at most two units in the last place on the device.
template <class A>
TP_HD A quotient(A a, A b) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(A) == 4) return __fdividef(a, b);
#endif
  return a / b;
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

// NaN wins over numbers, and the earlier of two equal values (or two NaNs) wins. So gradients go to the first of equal
// values.
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

// Bitwise operators on integers. An accumulator may be wider than the values; the extra bits are cut off when it is
// stored.
template <class A>
struct BitAnd {
  static constexpr OpId id = OpId::bitwise_and;
  using Acc = A;
  TP_HD static A identity() { return A(~A(0)); }
  TP_HD static A combine(A earlier, A later) { return A(earlier & later); }
};

template <class A>
struct BitOr {
  static constexpr OpId id = OpId::bitwise_or;
  using Acc = A;
  TP_HD static A identity() { return A(0); }
  TP_HD static A combine(A earlier, A later) { return A(earlier | later); }
};

template <class A>
struct BitXor {
  static constexpr OpId id = OpId::bitwise_xor;
  using Acc = A;
  TP_HD static A identity() { return A(0); }
  TP_HD static A combine(A earlier, A later) { return A(earlier ^ later); }
};

// A value and its index. Among equal values the lower index wins, so operands may come in any order. The index of the
// identity loses against every other.
template <class A>
struct Indexed {
  A value;
  int64_t index;
};

template <class Extremum, OpId id_>
struct ArgExtremum {
  static constexpr OpId id = id_;
  using A = typename Extremum::Acc;
  using Acc = Indexed<A>;
  TP_HD static Acc identity() { return {Extremum::identity(), std::numeric_limits<int64_t>::max()}; }
  TP_HD static Acc combine(Acc earlier, Acc later) {
    const bool both_nan = earlier.value != earlier.value && later.value != later.value;
    if (both_nan || earlier.value == later.value) return earlier.index <= later.index ? earlier : later;
    const A won = Extremum::combine(earlier.value, later.value);
    return won == earlier.value || earlier.value != earlier.value ? earlier : later;
  }
};
template <class A>
using ArgMax = ArgExtremum<Max<A>, OpId::argmax>;
template <class A>
using ArgMin = ArgExtremum<Min<A>, OpId::argmin>;

// log(exp(x) + exp(y) + ...), held as a maximum and the sum of exp(x - maximum), so that nothing overflows (online
// softmax). A maximum that is not finite is itself the result: NaN or +inf, or -inf if all operands are -inf (the sum
// then counts them).
template <class A>
struct Exponentials {
  A max, sum;
};

template <class A>
struct LogSumExp {
  static constexpr OpId id = OpId::logsumexp;
  using Acc = Exponentials<A>;
  TP_HD static Acc identity() { return {detail::lowest<A>(), A(0)}; }
  TP_HD static Acc combine(Acc earlier, Acc later) {
    const bool keep = earlier.max >= later.max || earlier.max != earlier.max;
    const Acc most = keep ? earlier : later, less = keep ? later : earlier;
    const A scale = less.max == most.max ? A(1) : A(std::exp(less.max - most.max));
    return {most.max, most.sum + less.sum * scale};
  }
};

// The number of values, their mean, and the sum of their squared distances from it. The mean is counted from one of the
// values, so that no digits are lost where it is large against the deviation. Moments of parts are combined by the
// distance of their means (Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample
// variances, 1979).
template <class A>
struct Moments {
  A count, origin, mean, squares;
};

template <class A>
struct Variance {
  static constexpr OpId id = OpId::variance;
  using Acc = Moments<A>;
  TP_HD static Acc identity() { return {A(0), A(0), A(0), A(0)}; }
  // The difference is 0, but NaN if x is not finite, as is then the variance.
  TP_HD static Acc element(A x) { return {A(1), x, A(0), x - x}; }
  TP_HD static Acc combine(Acc earlier, Acc later) {
    if (earlier.count == A(0)) return later;
    const A count = earlier.count + later.count, part = later.count / count;
    const A distance = (later.origin - earlier.origin) + (later.mean - earlier.mean);
    return {count, earlier.origin, earlier.mean + distance * part,
            earlier.squares + later.squares + distance * (distance * (earlier.count * part))};
  }
  // As combine, if `later` is a single value (Welford, 1962).
  TP_HD static Acc append(const Acc& earlier, A x) {
    const A count = earlier.count + A(1), origin = earlier.count == A(0) ? x : earlier.origin;
    const A value = x - origin, distance = value - earlier.mean,
            mean = earlier.mean + detail::quotient(distance, count);
    return {count, origin, mean, earlier.squares + distance * (value - mean)};
  }
  // The variance of `count` values; NaN for fewer than two.
  TP_HD static A result(const Acc& v, int64_t count) { return v.squares / A(tp::max(count - 1, int64_t(0))); }
};

// The map h -> a h + b. combine composes two maps: first the earlier one, then the later one. This is the monoid of
// linear recurrences (Hwu, lecture 4.4, "solving recurrences"). Like products of 2x2 matrices, it does not commute.
template <class A>
struct AffineMap {
  A a, b;
};

// A product of factors may overflow although no state does, because 0 times any finite factor is 0. So in a composed
// map an infinite factor leaves a state of 0 unchanged. A NaN factor counts as 0, since only an overflow times 0 can
// have made it: a NaN among the given factors is stored in `b` instead (see element), which makes every later state
// NaN.
template <class A>
struct Affine {
  static constexpr OpId id = OpId::affine;
  using Acc = AffineMap<A>;
  TP_HD static Acc identity() { return {A(1), A(0)}; }
  TP_HD static Acc combine(Acc earlier, Acc later) {
    const A factor = later.a == later.a ? later.a : A{};
    return {factor * earlier.a, earlier.b == A{} ? later.b : factor * earlier.b + later.b};
  }
  // As combine, if `later` is a single step, in which no overflow can have occurred. `earlier` is the identity or a
  // composition of elements.
  TP_HD static Acc append(Acc earlier, Acc later) { return {later.a * earlier.a, later.a * earlier.b + later.b}; }
  // Turns a single step into an operand that may come first in combine.
  TP_HD static Acc element(A a, A b) { return {a, a == a ? b : a}; }
};

// M::combine(earlier, later) where `later` is a single element of the sequence.
template <class M>
TP_HD typename M::Acc append(const typename M::Acc& earlier, const typename M::Acc& later) {
  if constexpr (M::id == OpId::affine) {
    return M::append(earlier, later);
  } else {
    return M::combine(earlier, later);
  }
}

// A monoid template as a value, so that it can be passed to a generic lambda.
template <template <class> class M>
struct MonoidOf {
  template <class A>
  using of = M<A>;
};

}  // namespace tp
