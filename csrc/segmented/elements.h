// The elements of segments: how a rung loads an operand and stores a result. This is the one switch from run-time Args
// to a type per (dtype, operator).
#pragma once
#include "block/offsets.h"
#include "segmented/segmented.h"

namespace tp::segmented {

using block::BoundOffsets;

struct Offsets : block::Offsets {
  explicit Offsets(const Args& x, bool mirrored = false)
      : block::Offsets(x.offsets, x.long_offsets, x.segments, x.n, mirrored) {}
};

// ---- reduction

template <class E, class In, class Out, class O>
struct BoundReduction {
  using Acc = typename E::Acc;
  using M = typename E::Monoid;
  E e;
  In in;
  Out out;
  O offsets;

  TP_HD Acc load(int64_t row, int64_t column) const {
    const typename E::Input x = in[row * e.width + column];
    return operand(x, row);
  }
  // The value x of a row as an operand.
  TP_HD static Acc operand(typename E::Input x, int64_t row) {
    if constexpr (E::finds_index) {
      return {decltype(Acc::value)(x), row};
    } else {
      return Acc(x);
    }
  }
  // Stores the result of a segment; an empty one has the identity, a mean of 0 or the index -1.
  TP_HD void store(int64_t segment, int64_t column, Acc value) const {
    out[segment * e.width + column] = result(segment, value);
  }
  TP_HD typename E::Output result(int64_t segment, Acc value) const {
    using Output = typename E::Output;
    if constexpr (E::finds_index) {
      return value.index < e.n ? value.index : Output(-1);
    } else if constexpr (E::mean) {
      const int64_t length = offsets.end(segment) - offsets.begin(segment);
      return Output(length > 0 ? value / Acc(length) : Acc(0));
    } else {
      return Output(value);
    }
  }
};

template <class In, class Out, class M, bool mean_ = false>
struct Reduction {
  using Input = In;
  using Output = Out;
  using Monoid = M;
  using Acc = typename M::Acc;
  static constexpr bool mean = mean_, finds_index = M::id == OpId::argmax || M::id == OpId::argmin;
  static constexpr bool in_place = std::is_same<Acc, Out>::value && !mean;  // `out` can hold intermediate values
  const In* in;
  Out* out;
  Offsets offsets;
  int64_t n, width, segments;

  explicit Reduction(const Args& x)
      : in(static_cast<const In*>(x.in)),
        out(static_cast<Out*>(x.out)),
        offsets(x),
        n(x.n),
        width(x.width),
        segments(x.segments) {}

  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto x = block.global("values", in, n * width);
    const auto y = block.global("y", out, segments * width);
    const auto o = offsets.bind(block);
    return BoundReduction<Reduction, std::decay_t<decltype(x)>, std::decay_t<decltype(y)>, std::decay_t<decltype(o)>>{
        *this, x, y, o};
  }
};

// Calls f(Reduction<...>) for the dtype and operator of `args`; sums and products accumulate in SumOf<T>.
template <template <class> class SumOf = acc_t, class F>
void with_reduction(const Args& args, F f) {
  const auto each = [&](auto types, auto g) { dispatch(types, args.dtype, "segment_reduce", g); };
  const auto widened = [&](auto op) {
    each(AllTypes{}, [&](auto type) {
      using T = typename decltype(type)::type;
      f(Reduction<T, sum_t<T>, typename decltype(op)::template of<SumOf<sum_t<T>>>>(args));
    });
  };
  const auto same = [&](auto op) {
    each(AllTypes{}, [&](auto type) {
      using T = typename decltype(type)::type;
      f(Reduction<T, T, typename decltype(op)::template of<acc_t<T>>>(args));
    });
  };
  const auto index = [&](auto op) {
    each(AllTypes{}, [&](auto type) {
      using T = typename decltype(type)::type;
      f(Reduction<T, int64_t, typename decltype(op)::template of<acc_t<T>>>(args));
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
    case OpId::argmax:
      return index(MonoidOf<ArgMax>{});
    case OpId::argmin:
      return index(MonoidOf<ArgMin>{});
    case OpId::mean:
      return each(FloatTypes{}, [&](auto type) {
        using T = typename decltype(type)::type;
        f(Reduction<T, T, Sum<SumOf<T>>, true>(args));
      });
    default:
      fail(ErrorKind::value, "segment_reduce: no such operator");
  }
}

// ---- expansion: values are only copied, so only the size of their type matters

template <class T, class In, class Out, class O>
struct BoundExpansion {
  In in;
  Out out;
  O offsets;
  int64_t width;

  // The value for the rows of a segment from -1 to `segments`.
  TP_HD T value(int64_t segment, int64_t column) const {
    if (!offsets.exists(segment)) return T(0);
    const T v = in[segment * width + column];
    return v;
  }
  TP_HD void store(int64_t row, int64_t column, T value) const { out[row * width + column] = value; }
};

template <class T>
struct Expansion {
  using Value = T;
  const T* in;
  T* out;
  Offsets offsets;
  int64_t n, width, segments;

  explicit Expansion(const Args& x)
      : in(static_cast<const T*>(x.in)),
        out(static_cast<T*>(x.out)),
        offsets(x),
        n(x.n),
        width(x.width),
        segments(x.segments) {}

  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto x = block.global("x", in, segments * width);
    const auto y = block.global("y", out, n * width);
    const auto o = offsets.bind(block);
    return BoundExpansion<T, std::decay_t<decltype(x)>, std::decay_t<decltype(y)>, std::decay_t<decltype(o)>>{x, y, o,
                                                                                                              width};
  }
};

// Calls f(Expansion<T>) with a T of the size of args.dtype.
template <class F>
void with_expansion(const Args& args, F f) {
  dispatch(AllTypes{}, args.dtype, "segment_expand", [&](auto type) {
    constexpr size_t size = sizeof(typename decltype(type)::type);
    using Word = std::conditional_t<size == 8, int64_t, std::conditional_t<size == 4, int32_t, int16_t>>;
    f(Expansion<std::conditional_t<size == 1, uint8_t, Word>>(args));
  });
}

}  // namespace tp::segmented
