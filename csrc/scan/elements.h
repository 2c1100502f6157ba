// The elements of a scan: how a rung loads operand k of a row and stores result k, in either direction and in any
// layout. with_elements is the one switch from the run-time Args to a type per dtype and operator.
#pragma once
#include "core/narrow.h"
#include "scan/scan.h"

namespace tp::scan {

// The elements, with their arrays bound to a block by Elements::bind, so that the simt model can watch every access.
template <class E, class In, class Out, class Kept>
struct BoundElements {
  using Acc = typename E::Acc;
  using M = typename E::Monoid;
  E e;
  In in, a, initial;
  Out out;
  Kept partial;

  TP_HD int64_t at(int64_t row, int64_t k) const {
    if (e.reverse) k = e.n - 1 - k;
    return e.inner == 1 ? row * e.n + k : (row / e.inner * e.n + k) * e.inner + row % e.inner;
  }
  // The operand at x[k].
  TP_HD Acc element(int64_t row, int64_t k) const {
    const typename E::Input x = in[at(row, k)];
    if constexpr (M::id == OpId::affine) {
      using A = decltype(Acc::a);
      if (k > 0) {
        const typename E::Input factor = a[at(row, e.previous ? k - 1 : k)];
        return M::element(A(factor), A(x));
      }
      if (!e.initial) return {A(0), A(x)};
      const typename E::Input factor = a[at(row, k)], h = initial[row];
      return {A(0), A(factor) * A(h) + A(x)};
    } else {
      return Acc(x);
    }
  }
  // The operand at k for an inclusive scan that gives the requested result. An exclusive scan shifts the input by one
  // (Fig. 11.4).
  TP_HD Acc load(int64_t row, int64_t k) const {
    if (e.exclusive && k-- == 0) return M::identity();
    return element(row, k);
  }
  TP_HD void store(int64_t row, int64_t k, Acc value) const {
    using Output = typename E::Output;
    if constexpr (M::id == OpId::affine) {
      out[at(row, k)] = Output(value.b);
    } else {
      out[at(row, k)] = Output(value);
    }
  }
  // Stores an intermediate result: in the output itself if its dtype is that of the accumulator, else in a workspace.
  TP_HD void keep(int64_t row, int64_t k, Acc value) const {
    if constexpr (E::in_place) {
      store(row, k, value);
    } else {
      partial[at(row, k)] = value;
    }
  }
  TP_HD Acc kept(int64_t row, int64_t k) const {
    if constexpr (E::in_place) {
      return out[at(row, k)];
    } else {
      return partial[at(row, k)];
    }
  }
};

template <class In, class Out, class M>
struct Elements {
  using Input = value_t<In>;
  using Output = value_t<Out>;
  using Monoid = M;
  using Acc = typename M::Acc;
  static constexpr bool in_place = std::is_same<Acc, Out>::value || std::is_same<Out, Narrow<int64_t>>::value;
  const In *in, *a, *initial;
  Out* out;
  const Out* times;
  Out* products;
  Acc* partial = nullptr;
  int64_t rows, n, inner;
  bool exclusive, reverse, previous;
  DType dtype;

  explicit Elements(const Args& x)
      : in(static_cast<const In*>(x.in)),
        a(static_cast<const In*>(x.a)),
        initial(static_cast<const In*>(x.initial)),
        out(static_cast<Out*>(x.out)),
        times(static_cast<const Out*>(x.times)),
        products(static_cast<Out*>(x.products)),
        rows(x.rows()),
        n(x.n),
        inner(x.inner),
        exclusive(x.exclusive),
        reverse(x.reverse),
        previous(x.previous),
        dtype(x.dtype) {}

  // The address of the multiplier that belongs to element 0 of `in`. With `previous` multipliers are shifted by one
  // element, so this address lies outside the array and must not be read.
  TP_HD const In* factors() const {
    return reinterpret_cast<const In*>(reinterpret_cast<uintptr_t>(a) +
                                       uintptr_t(previous ? reverse ? inner : -inner : 0) * sizeof(In));
  }

  // The address of what result 0 is multiplied by. It may lie outside the array, too.
  TP_HD const Out* next_times() const {
    return reinterpret_cast<const Out*>(reinterpret_cast<uintptr_t>(times) +
                                        uintptr_t(reverse ? -inner : inner) * sizeof(Out));
  }

  // Must be called before the first keep().
  void allocate(Context& context) {
    if (!in_place) partial = context.workspace<Acc>(rows * n);
  }

  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto x = global_of(block, M::id == OpId::affine ? "b" : "x", in, rows * n, dtype);
    const auto factor = global_of(block, "a", a, rows * n, dtype);
    const auto start = global_of(block, "initial", initial, rows, dtype);
    const auto y = global_of(block, "y", out, rows * n, dtype);
    const auto kept = block.global("partial", partial, rows * n);
    return BoundElements<Elements, std::decay_t<decltype(x)>, std::decay_t<decltype(y)>, std::decay_t<decltype(kept)>>{
        *this, x, factor, start, y, kept};
  }
};

// Calls f(Elements<...>) for one operator and the dtype of `args`. Results are accumulated in AccOf<T>. An array of T
// is one of StoredAs<T>.
template <OpId op, template <class> class AccOf = acc_t, template <class> class StoredAs = itself_t, class F>
void with_elements_of(const Args& args, F f) {
  if constexpr (op == OpId::affine) {
    dispatch(FloatTypes{}, args.dtype, "linear_recurrence", [&](auto type) {
      using T = StoredAs<typename decltype(type)::type>;
      f(Elements<T, T, Affine<AccOf<T>>>(args));
    });
  } else if constexpr (op == OpId::bitwise_and || op == OpId::bitwise_or || op == OpId::bitwise_xor) {
    dispatch(BitTypes{}, args.dtype, "scan", [&](auto type) {
      using T = StoredAs<typename decltype(type)::type>;
      if constexpr (op == OpId::bitwise_and) {
        f(Elements<T, T, BitAnd<acc_t<T>>>(args));
      } else if constexpr (op == OpId::bitwise_or) {
        f(Elements<T, T, BitOr<acc_t<T>>>(args));
      } else {
        f(Elements<T, T, BitXor<acc_t<T>>>(args));
      }
    });
  } else {
    dispatch(AllTypes{}, args.dtype, "scan", [&](auto type) {
      using T = StoredAs<typename decltype(type)::type>;
      if constexpr (op == OpId::sum) {
        f(Elements<T, sum_t<T>, Sum<AccOf<sum_t<T>>>>(args));
      } else if constexpr (op == OpId::prod) {
        f(Elements<T, sum_t<T>, Prod<AccOf<sum_t<T>>>>(args));
      } else if constexpr (op == OpId::max) {
        f(Elements<T, T, Max<acc_t<T>>>(args));
      } else {
        f(Elements<T, T, Min<acc_t<T>>>(args));
      }
    });
  }
}

// As with_elements_of, for the operator of `args`.
template <template <class> class AccOf = acc_t, template <class> class StoredAs = itself_t, class F>
void with_elements(const Args& args, F f) {
  switch (args.op) {
    case OpId::sum:
      return with_elements_of<OpId::sum, AccOf, StoredAs>(args, f);
    case OpId::prod:
      return with_elements_of<OpId::prod, AccOf, StoredAs>(args, f);
    case OpId::max:
      return with_elements_of<OpId::max, AccOf, StoredAs>(args, f);
    case OpId::min:
      return with_elements_of<OpId::min, AccOf, StoredAs>(args, f);
    case OpId::affine:
      return with_elements_of<OpId::affine, AccOf, StoredAs>(args, f);
    case OpId::bitwise_and:
      return with_elements_of<OpId::bitwise_and, AccOf, StoredAs>(args, f);
    case OpId::bitwise_or:
      return with_elements_of<OpId::bitwise_or, AccOf, StoredAs>(args, f);
    case OpId::bitwise_xor:
      return with_elements_of<OpId::bitwise_xor, AccOf, StoredAs>(args, f);
    default:
      fail(ErrorKind::value, "scan: no such operator");
  }
}

// For textbook kernels (core/narrow.h).
template <class F>
void with_wide_elements(const Args& args, F f) {
  with_elements<acc_t, narrow_t>(args, f);
}

}  // namespace tp::scan
