// The elements of a segmented scan: pairs of a head flag and a value (Schwartz's operator), with which any scan
// algorithm scans all segments at once. The head of a segment discards everything before it. It does so without
// multiplying by zero, so NaN and infinities stay in their segments.
#pragma once
#include "segmented/elements.h"

namespace tp::segmented {

template <class M>
struct Segmented {
  static constexpr OpId id = M::id;
  using Base = M;
  struct Acc {
    typename M::Acc value;  // combined since the last head
    bool head;              // whether there was a head
  };
  TP_HD static Acc identity() { return {M::identity(), false}; }
  TP_HD static Acc combine(Acc earlier, Acc later) {
    return {later.head ? later.value : M::combine(earlier.value, later.value), earlier.head || later.head};
  }
  TP_HD static Acc append(Acc earlier, Acc later) {
    return {later.head ? later.value : tp::append<M>(earlier.value, later.value), earlier.head || later.head};
  }
};

// Rows are counted in the order of the scan: in a reverse scan, k = 0 is the last row, and offsets are mirrored.
template <class E, class In, class Out, class Kept, class O>
struct BoundScan {
  using Acc = typename E::Acc;
  using M = typename E::Base;
  E e;
  In in, a;
  Out out;
  Kept partial;
  O offsets;

  TP_HD int64_t at(int64_t column, int64_t k) const { return (e.reverse ? e.n - 1 - k : k) * e.width + column; }
  // x[k] as an operand of the scan; `head` tells whether k is the head of its segment.
  TP_HD Acc operand(int64_t column, int64_t k, bool head) const {
    const typename E::Input x = in[at(column, k)];
    if constexpr (M::id == OpId::affine) {
      using A = decltype(M::Acc::a);
      const typename E::Input factor = a[at(column, k)];
      head = head || A(factor) == A(0);
      return {M::element(head ? A(0) : A(factor), A(x)), head};
    } else {
      return {typename M::Acc(x), head};
    }
  }
  // The operand at k for an inclusive scan of all rows that gives the requested result.
  TP_HD Acc load(int64_t column, int64_t k) const {
    const int64_t segment = offsets.find(k);
    if (!offsets.exists(segment)) return {M::identity(), true};
    const bool head = offsets.begin(segment) == k;
    if (!e.exclusive) return operand(column, k, head);
    return head ? Acc{M::identity(), true} : operand(column, k - 1, false);
  }
  TP_HD void store(int64_t column, int64_t k, Acc result) const {
    using Output = typename E::Output;
    if constexpr (M::id == OpId::affine) {
      out[at(column, k)] = Output(result.value.b);
    } else {
      out[at(column, k)] = Output(result.value);
    }
  }
  // Intermediate results, which the launches of a scan pass on.
  TP_HD void keep(int64_t column, int64_t k, Acc value) const { partial[at(column, k)] = value; }
  TP_HD Acc kept(int64_t column, int64_t k) const { return partial[at(column, k)]; }
};

template <class In, class Out, class M>
struct Scan {
  using Input = value_t<In>;
  using Output = value_t<Out>;
  using Base = M;
  using Monoid = Segmented<M>;
  using Acc = typename Monoid::Acc;
  const In *in, *a;
  Out* out;
  Acc* partial = nullptr;
  Offsets offsets;
  int64_t n, width, segments, rows;  // the columns here, which the scan drivers call rows
  bool exclusive, reverse;
  DType dtype;

  explicit Scan(const Args& x)
      : in(static_cast<const In*>(x.in)),
        a(static_cast<const In*>(x.a)),
        out(static_cast<Out*>(x.out)),
        offsets(x, x.reverse),
        n(x.n),
        width(x.width),
        segments(x.segments),
        rows(x.width),
        exclusive(x.exclusive),
        reverse(x.reverse),
        dtype(x.dtype) {}

  // Must be called before the first keep().
  void allocate(Context& context) { partial = context.workspace<Acc>(n * width); }

  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto x = global_of(block, M::id == OpId::affine ? "b" : "values", in, n * width, dtype);
    const auto factor = global_of(block, "a", a, n * width, dtype);
    const auto y = global_of(block, "y", out, n * width, dtype);
    const auto kept = block.global("partial", partial, n * width);
    const auto o = offsets.bind(block);
    return BoundScan<Scan, std::decay_t<decltype(x)>, std::decay_t<decltype(y)>, std::decay_t<decltype(kept)>,
                     std::decay_t<decltype(o)>>{*this, x, factor, y, kept, o};
  }
};

// Calls f(Scan<...>) for the dtype and operator of `args`. Sums, products and recurrences accumulate in SumOf<T>.
// An array of T is one of StoredAs<T>.
template <template <class> class SumOf = acc_t, template <class> class StoredAs = itself_t, class F>
void with_scan(const Args& args, F f) {
  const auto widened = [&](auto op) {
    dispatch(AllTypes{}, args.dtype, "segment_scan", [&](auto type) {
      using T = StoredAs<typename decltype(type)::type>;
      f(Scan<T, sum_t<T>, typename decltype(op)::template of<SumOf<sum_t<T>>>>(args));
    });
  };
  const auto same = [&](auto op) {
    dispatch(AllTypes{}, args.dtype, "segment_scan", [&](auto type) {
      using T = StoredAs<typename decltype(type)::type>;
      f(Scan<T, T, typename decltype(op)::template of<acc_t<T>>>(args));
    });
  };
  const auto bits = [&](auto op) {
    dispatch(BitTypes{}, args.dtype, "segment_scan", [&](auto type) {
      using T = StoredAs<typename decltype(type)::type>;
      f(Scan<T, T, typename decltype(op)::template of<acc_t<T>>>(args));
    });
  };
  switch (args.op) {
    case OpId::sum:
      return widened(MonoidOf<Sum>{});
    case OpId::prod:
      return widened(MonoidOf<Prod>{});
    case OpId::max:
      return same(MonoidOf<Max>{});
    case OpId::min:
      return same(MonoidOf<Min>{});
    case OpId::bitwise_and:
      return bits(MonoidOf<BitAnd>{});
    case OpId::bitwise_or:
      return bits(MonoidOf<BitOr>{});
    case OpId::bitwise_xor:
      return bits(MonoidOf<BitXor>{});
    case OpId::affine:
      return dispatch(FloatTypes{}, args.dtype, "segment_recurrence", [&](auto type) {
        using T = StoredAs<typename decltype(type)::type>;
        f(Scan<T, T, Affine<SumOf<T>>>(args));
      });
    default:
      fail(ErrorKind::value, "segment_scan: no such operator");
  }
}

}  // namespace tp::segmented
