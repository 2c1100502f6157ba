// A buffer of operands, and the loops over it that make up the threaded scan, on vectors of 32 bytes. Vectors have this
// width on every processor, so operands are combined in the same order everywhere; if the processor has no such
// vectors, the compiler splits them.
#pragma once
#pragma GCC diagnostic ignored "-Wpsabi"  // only inlined functions take vectors

#include <algorithm>
#include <utility>

#include "core/op.h"

namespace tp::scan {

constexpr int64_t buffer_size = 512;

// ---- vectors of operands: an affine map takes two planes of numbers, other operands take one

template <class A, class = std::make_index_sequence<32 / sizeof(A)>>
struct Vector;

template <class A, size_t... lane>
struct Vector<A, std::index_sequence<lane...>> {
  typedef A V __attribute__((vector_size(32)));
  static constexpr int lanes = sizeof...(lane);

  static V splat(A value) { return V{(void(lane), value)...}; }
  static V last(V v) { return select<(void(lane), lanes - 1)...>(v, v); }
  // Lane i becomes lane i - d; the first d lanes come from `fill`.
  template <int d>
  static V shift(V fill, V v) {
    return select<(int(lane) < d ? int(lane) : lanes + int(lane) - d)...>(fill, v);
  }

 private:
  template <int... from>
  static V select(V first, V second) {
#ifdef __clang__
    return __builtin_shufflevector(first, second, from...);
#else
    typedef decltype(first < second) Mask;
    return __builtin_shuffle(first, second, Mask{from...});
#endif
  }
};

// How the operands of a monoid are stored.
template <class M>
struct Operands;

template <template <class> class Op, class A>
struct Operands<Op<A>> {
  using Lane = typename std::conditional<std::is_same<A, bool>::value, uint8_t, A>::type;
  using Vec = Vector<Lane>;
  using V = typename Vec::V;
  using Monoid = Op<V>;
  static constexpr int planes = 1, lanes = Vec::lanes;

  static A get(const Lane* x) { return A(*x); }
  static void put(Lane* x, A value) { *x = Lane(value); }
  static V load(const Lane* x) { return *reinterpret_cast<const V*>(x); }
  static void store(Lane* x, V v) { *reinterpret_cast<V*>(x) = v; }
  static V splat(A x) { return Vec::splat(Lane(x)); }
  static A first(V v) { return A(v[0]); }
  static V last(V v) { return Vec::last(v); }
  template <int d>
  static V shift(V fill, V v) {
    return Vec::template shift<d>(fill, v);
  }
};

template <class A>
struct Operands<Affine<A>> {
  using Lane = A;
  using Plane = Operands<Sum<A>>;
  using V = AffineMap<typename Plane::V>;
  using Monoid = Affine<typename Plane::V>;
  static constexpr int planes = 2, lanes = Plane::lanes;

  static AffineMap<A> get(const A* x) { return {x[0], x[buffer_size]}; }
  static void put(A* x, AffineMap<A> value) { x[0] = value.a, x[buffer_size] = value.b; }
  static V load(const A* x) { return {Plane::load(x), Plane::load(x + buffer_size)}; }
  static void store(A* x, V v) { Plane::store(x, v.a), Plane::store(x + buffer_size, v.b); }
  static V splat(AffineMap<A> x) { return {Plane::splat(x.a), Plane::splat(x.b)}; }
  static AffineMap<A> first(V v) { return {v.a[0], v.b[0]}; }
  static V last(V v) { return {Plane::last(v.a), Plane::last(v.b)}; }
  template <int d>
  static V shift(V fill, V v) {
    return {Plane::template shift<d>(fill.a, v.a), Plane::template shift<d>(fill.b, v.b)};
  }
};

template <class M>
struct alignas(64) Buffer {
  using O = Operands<M>;
  typename O::Lane x[O::planes * buffer_size];

  typename O::Lane* values() { return x + (O::planes - 1) * buffer_size; }  // for a map, its constant term
  typename M::Acc get(int64_t i) const { return O::get(x + i); }
  void put(int64_t i, typename M::Acc value) { O::put(x + i, value); }
  void clear(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) put(i, M::identity());
  }
};

// ---- loops: fast<Loop>(arguments) runs a loop on the vectors of this processor

// Without wide vectors, the compiler would split comparisons, which is slow. The result of an extremum does not depend
// on the order of its operands, so they are then combined one by one.
template <class M, bool wide>
constexpr bool one_by_one = !wide && (M::id == OpId::max || M::id == OpId::min);

template <class Loop, class... Args>
__attribute__((noinline, flatten)) void on_any(Args... args) {
  Loop::template run<false>(args...);
}

#if defined(__x86_64__) && defined(__GNUC__)
template <class Loop, class... Args>
__attribute__((target("avx2"), flatten)) void on_avx2(Args... args) {
  Loop::template run<true>(args...);
}

template <class Loop, class... Args>
void fast(Args... args) {
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  has_avx2 ? on_avx2<Loop>(args...) : on_any<Loop>(args...);
}
#else
template <class Loop, class... Args>
void fast(Args... args) {
  on_any<Loop>(args...);
}
#endif

// Calls f(step), where step is a compile-time constant if that makes loops over memory faster.
template <class F>
void with_step(int64_t step, F f) {
  if (step == 1) return f(std::integral_constant<int, 1>{});
  if (step == -1) return f(std::integral_constant<int, -1>{});
  f(step);
}

template <class In, class Lane>
struct Load {
  template <bool wide>
  static void run(const In* from, int64_t step, int64_t n, Lane* to) {
    with_step(step, [=](auto by) {
      for (int64_t i = 0; i < n; ++i) to[i] = Lane(acc_t<In>(from[i * by]));
    });
  }
};

template <class Lane, class Out>
struct Store {
  template <bool wide>
  static void run(const Lane* from, int64_t n, Out* to, int64_t step) {
    with_step(step, [=](auto by) {
      for (int64_t i = 0; i < n; ++i) to[i * by] = Out(acc_t<Out>(from[i]));
    });
  }
};

// Computes h = a h + b for each lane.
template <class In, class Lane, class Out>
struct Recur {
  template <bool wide>
  static void run(const In* __restrict a, const In* __restrict b, int64_t n, Lane* __restrict h, Out* __restrict out) {
    for (int64_t i = 0; i < n; ++i) {
      h[i] = Lane(acc_t<In>(a[i])) * h[i] + Lane(acc_t<In>(b[i]));
      out[i] = Out(acc_t<Out>(h[i]));
    }
  }
};

// Scans the first n operands after `running`, which becomes the total: Kogge-Stone within a vector (§11.2), one vector
// after another.
template <class M>
struct Scan {
  using O = Operands<M>;
  using V = typename O::V;
  using Op = typename O::Monoid;

  template <bool wide>
  static void run(Buffer<M>* x, int64_t n, typename M::Acc* running) {
    if constexpr (one_by_one<M, wide>) {
      for (int64_t i = 0; i < n; ++i) x->put(i, *running = M::combine(*running, x->get(i)));
      return;
    }
    x->clear(n, ceil_div(n, int64_t(O::lanes)) * O::lanes);
    V before = O::splat(*running);
    for (int64_t i = 0; i < n; i += O::lanes) {
      const V v = prefixes(O::load(x->x + i));
      O::store(x->x + i, Op::combine(before, v));
      before = Op::combine(before, O::last(v));
    }
    *running = O::first(before);
  }

  template <int d = 1>
  static V prefixes(V v) {
    if constexpr (d < O::lanes) {
      const V left = O::template shift<d>(O::splat(M::identity()), v);
      if constexpr (M::id == OpId::affine && d == 1) {
        return prefixes<2 * d>(append<Op>(Op::element(left.a, left.b), v));
      } else {
        return prefixes<2 * d>(Op::combine(left, v));
      }
    } else {
      return v;
    }
  }
};

// running = running . x[0] . ... . x[n - 1]. Sums and products are combined lane by lane, since they may be in any
// order.
template <class M>
struct Reduce {
  using O = Operands<M>;
  using V = typename O::V;
  using Op = typename O::Monoid;
  static constexpr bool by_lanes = M::id == OpId::sum || M::id == OpId::prod;
  static constexpr int64_t vectors = by_lanes ? 4 : 1, together = vectors * O::lanes;

  template <bool wide>
  static void run(Buffer<M>* x, int64_t n, typename M::Acc* running) {
    if constexpr (one_by_one<M, wide>) {
      for (int64_t i = 0; i < n; ++i) *running = M::combine(*running, x->get(i));
      return;
    }
    x->clear(n, ceil_div(n, together) * together);
    V total = O::splat(*running), part[vectors];
    std::fill(part, part + vectors, O::splat(M::identity()));
    for (int64_t i = 0; i < n; i += together) {
      for (int64_t j = 0; j < vectors; ++j) {
        const V v = O::load(x->x + i + j * O::lanes);
        part[j] = by_lanes ? Op::combine(part[j], v) : v;
      }
      if (!by_lanes) total = Op::combine(total, O::last(Scan<M>::prefixes(part[0])));
    }
    if constexpr (by_lanes) {
      const V all = Op::combine(Op::combine(part[0], part[1]), Op::combine(part[2], part[3]));
      total = Op::combine(total, O::last(Scan<M>::prefixes(all)));
    }
    *running = O::first(total);
  }
};

// Scans short rows: `groups` groups of `rows` rows with n elements each. Elements k of all rows of a group are
// neighbours.
template <class M>
struct ScanShort {
  template <bool wide>
  static void run(Buffer<M>* x, int64_t groups, int64_t n, int64_t rows) {
    with_step(rows, [=](auto step) {
      for (int64_t group = 0; group < groups; ++group) {
        for (int64_t i = group * n * step; i < group * n * step + step; ++i) {
          auto running = x->get(i);
#pragma GCC unroll 4
          for (int64_t k = 1; k < n; ++k) {
            running = append<M>(running, x->get(i + k * step));
            x->put(i + k * step, running);
          }
        }
      }
    });
  }
};

// running[i] = running[i] . x[i]. Lanes from n up to a whole vector are undefined before and after.
template <class M>
struct Across {
  using O = Operands<M>;
  template <bool wide>
  static void run(const Buffer<M>* x, int64_t n, Buffer<M>* running) {
    if constexpr (one_by_one<M, wide>) {
      for (int64_t i = 0; i < n; ++i) running->put(i, M::combine(running->get(i), x->get(i)));
      return;
    }
    for (int64_t i = 0; i < n; i += O::lanes) {
      O::store(running->x + i, append<typename O::Monoid>(O::load(running->x + i), O::load(x->x + i)));
    }
  }
};

}  // namespace tp::scan
