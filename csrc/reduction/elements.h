// The elements of a reduction: how a rung loads operand k of a row and stores the result of the row, in any memory
// layout. with_elements is the only switch from run-time Args to a type per dtype and operator.
//
// A mean is a sum that is divided when it is stored. A minimum is a maximum of mirrored values (-x, or ~x for integers,
// which exchanges the lowest and the highest), mirrored back when it is stored. So max and min
// share a kernel, as do argmax and argmin, and sum and mean of floats.
#pragma once
#include "core/narrow.h"
#include "reduction/reduction.h"

namespace tp::reduction {

// The type that holds a maximum or bits: at least four bytes, which atomics need.
template <class T>
using word_t = typename std::conditional<(sizeof(acc_t<T>) < 4), int, acc_t<T>>::type;

template <class A>
TP_HD bool is_nan(A x) {
  if constexpr (std::is_floating_point<A>::value) {
    return x != x;
  } else {
    return false;
  }
}

// The maximum of values converted from T; its identity is the lowest value of T. There is no branch, so loops over it
// are vectorized.
template <class T>
struct MaxOf : Max<word_t<T>> {
  using A = word_t<T>;
  TP_HD static A identity() { return A(detail::lowest<acc_t<T>>()); }
  TP_HD static A combine(A earlier, A later) {
    const bool keep = (earlier >= later) | is_nan(earlier);
    return keep ? earlier : later;
  }
};
template <class T>
struct ArgMaxOf : ArgMax<word_t<T>> {};

template <class T>
using wide_t = typename std::conditional<is_floating<T>, double, T>::type;

// The type in which a few values of T are combined before they are added to a wide running value: float32 for sums of
// float32 and half types, int for small integers.
template <class T, class M>
using leaf_t =
    typename std::conditional<M::id != OpId::sum, M,
                              Sum<typename std::conditional<std::is_same<sum_t<T>, int64_t>::value && sizeof(T) < 4,
                                                            int, acc_t<sum_t<T>>>::type>>::type;

// Reverses the order of T's values; the inverse of itself.
template <class T>
TP_HD T mirror(T x) {
  if constexpr (std::is_same<T, boolean>::value) {
    return boolean(!bool(x));
  } else if constexpr (is_floating<T>) {
    return T(-acc_t<T>(x));
  } else {
    return T(~x);
  }
}

// Element x at index k as an operand.
template <class M, class In>
TP_HD typename M::Acc operand(In x, int64_t k, bool mirrored) {
  using Acc = typename M::Acc;
  if constexpr (M::id == OpId::argmax) {
    return {decltype(Acc::value)(acc_t<In>(mirrored ? mirror(x) : x)), k};
  } else if constexpr (M::id == OpId::logsumexp) {
    return {decltype(Acc::max)(x), 1};
  } else if constexpr (M::id == OpId::max) {
    return Acc(acc_t<In>(mirrored ? mirror(x) : x));
  } else {
    return Acc(acc_t<In>(x));
  }
}

// The result of a row of n operands.
template <class M, class Out>
TP_HD Out result(typename M::Acc value, int64_t n, bool mirrored, bool mean) {
  using Acc = typename M::Acc;
  if constexpr (M::id == OpId::argmax) {
    return value.index;
  } else if constexpr (M::id == OpId::logsumexp) {
    return Out(value.max + std::log(value.sum));
  } else if constexpr (M::id == OpId::max) {
    const Out most = Out(value);
    return mirrored ? mirror(most) : most;
  } else {
    return is_floating<Out> && mean ? Out(value / Acc(n)) : Out(value);
  }
}

// The elements, with their arrays bound to a block by Elements::bind.
template <class E, class In, class Out>
struct BoundElements {
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  E e;
  In in;
  Out out;

  TP_HD Acc load(int64_t row, int64_t k) const {
    const int64_t at = e.inner == 1 ? row * e.n + k : (row / e.inner * e.n + k) * e.inner + row % e.inner;
    const typename E::Input x = in[at];
    return operand<M>(x, k, e.mirrored);
  }
  TP_HD void store(int64_t row, Acc value) const { out[row] = e.result(value); }
};

template <class In, class Out, class M>
struct Elements {
  using Input = value_t<In>;
  using Output = value_t<Out>;
  using Monoid = M;
  using Acc = typename M::Acc;
  const In* in;
  Out* out;
  int64_t rows, n, inner;
  bool mirrored, mean;
  DType dtype;

  explicit Elements(const Args& x)
      : in(static_cast<const In*>(x.in)),
        out(static_cast<Out*>(x.out)),
        rows(x.rows()),
        n(x.n),
        inner(x.inner),
        mirrored(x.op == OpId::min || x.op == OpId::argmin),
        mean(x.op == OpId::mean),
        dtype(x.dtype) {}

  TP_HD Output result(Acc value) const { return reduction::result<M, Output>(value, n, mirrored, mean); }

  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto x = global_of(block, "x", in, rows * n, dtype);
    const auto y = global_of(block, "y", out, rows, dtype);
    return BoundElements<Elements, std::decay_t<decltype(x)>, std::decay_t<decltype(y)>>{*this, x, y};
  }
};

// Calls f(Elements<...>) for the dtype and operator of `args`. Sums and exponentials accumulate in AccOf<T>. An
// array of T is one of StoredAs<T>.
template <template <class> class AccOf = acc_t, template <class> class StoredAs = itself_t, class F>
void with_elements(const Args& args, F f) {
  const auto over = [&](auto types, auto call) {
    dispatch(types, args.dtype, "reduce", [&](auto type) { call(type); });
  };
  const auto bits = [&](auto op) {
    over(BitTypes{}, [&](auto type) {
      using T = StoredAs<typename decltype(type)::type>;
      f(Elements<T, T, typename decltype(op)::template of<word_t<T>>>(args));
    });
  };
  switch (args.op) {
    case OpId::sum:
      return over(AllTypes{}, [&](auto type) {
        using T = StoredAs<typename decltype(type)::type>;
        f(Elements<T, sum_t<T>, Sum<AccOf<sum_t<T>>>>(args));
      });
    case OpId::mean:
      return over(FloatTypes{}, [&](auto type) {
        using T = StoredAs<typename decltype(type)::type>;
        f(Elements<T, T, Sum<AccOf<T>>>(args));
      });
    case OpId::prod:
      return over(AllTypes{}, [&](auto type) {
        using T = StoredAs<typename decltype(type)::type>;
        f(Elements<T, sum_t<T>, Prod<AccOf<sum_t<T>>>>(args));
      });
    case OpId::max:
    case OpId::min:
      return over(AllTypes{}, [&](auto type) {
        using T = StoredAs<typename decltype(type)::type>;
        f(Elements<T, T, MaxOf<T>>(args));
      });
    case OpId::argmax:
    case OpId::argmin:
      return over(AllTypes{}, [&](auto type) {
        using T = StoredAs<typename decltype(type)::type>;
        f(Elements<T, int64_t, ArgMaxOf<T>>(args));
      });
    case OpId::logsumexp:
      return over(FloatTypes{}, [&](auto type) {
        using T = StoredAs<typename decltype(type)::type>;
        f(Elements<T, T, LogSumExp<AccOf<T>>>(args));
      });
    case OpId::bitwise_and:
      return bits(MonoidOf<BitAnd>{});
    case OpId::bitwise_or:
      return bits(MonoidOf<BitOr>{});
    case OpId::bitwise_xor:
      return bits(MonoidOf<BitXor>{});
    case OpId::affine:
      fail(ErrorKind::value, "reduce: affine maps are for scans");
    case OpId::variance:
    case OpId::deviation:
      fail(ErrorKind::value, "reduce: variances are for segments and groups");
  }
}

// For textbook kernels (core/narrow.h).
template <class F>
void with_wide_elements(const Args& args, F f) {
  with_elements<acc_t, narrow_t>(args, f);
}

}  // namespace tp::reduction
