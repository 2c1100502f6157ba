// The elements of segments: how a rung loads an operand and stores a result. with_reduction, with_expansion and
// with_softmax are the only switch from run-time Args to a type per dtype and operator.
#pragma once
#include "block/exponential.h"
#include "block/offsets.h"
#include "core/narrow.h"
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
    } else if constexpr (M::id == OpId::logsumexp) {
      return {decltype(Acc::max)(x), 1};
    } else if constexpr (M::id == OpId::variance) {
      return M::element(decltype(Acc::mean)(x));
    } else {
      return Acc(x);
    }
  }
  // Combines `running` and the value x of the next row. For logsumexp it takes one exponential and no branch. A NaN
  // need not become the maximum, as the sum will be NaN from then on.
  TP_HD static Acc append(const Acc& running, typename E::Input x, int64_t row) {
    if constexpr (M::id == OpId::logsumexp) {
      using A = decltype(Acc::max);
      const A value(x), distance = value - running.max;
      const A scale = value == running.max ? A(1) : A(block::exponential(-std::abs(distance)));
      const A rescaled = running.sum * scale + A(1), more = running.sum + scale;
      return {value > running.max ? value : running.max, value > running.max ? rescaled : more};
    } else if constexpr (M::id == OpId::variance) {
      return M::append(running, decltype(Acc::mean)(x));
    } else {
      return M::combine(running, operand(x, row));
    }
  }
  // Stores the result of a segment. The result of an empty segment is the identity; its mean is 0, and its index
  // is -1. The variance of fewer than two rows is NaN.
  TP_HD void store(int64_t segment, int64_t column, Acc value) const {
    out[segment * e.width + column] = result(segment, value);
  }
  TP_HD typename E::Output result(int64_t segment, Acc value) const {
    return result_of(value, E::divides ? offsets.end(segment) - offsets.begin(segment) : 0);
  }
  // The result of `length` rows.
  TP_HD typename E::Output result_of(Acc value, int64_t length) const {
    using Output = typename E::Output;
    if constexpr (E::finds_index) {
      return value.index < e.n ? value.index : Output(-1);
    } else if constexpr (E::mean) {
      return Output(length > 0 ? value / Acc(length) : Acc(0));
    } else if constexpr (M::id == OpId::variance) {
      const auto variance = M::result(value, length);
      return Output(e.deviation ? std::sqrt(variance) : variance);
    } else if constexpr (M::id == OpId::logsumexp && !std::is_same<Output, Acc>::value) {
      return Output(value.max + std::log(value.sum));
    } else {
      return Output(value);
    }
  }
};

template <class In, class Out, class M, bool mean_ = false>
struct Reduction {
  using Input = value_t<In>;
  using Output = value_t<Out>;
  using Monoid = M;
  using Acc = typename M::Acc;
  static constexpr bool mean = mean_, finds_index = M::id == OpId::argmax || M::id == OpId::argmin;
  static constexpr bool divides = mean || M::id == OpId::variance;          // by the number of rows, or one less
  static constexpr bool in_place = std::is_same<Acc, Out>::value && !mean;  // `out` can hold intermediate values
  const In* in;
  Out* out;
  Offsets offsets;
  int64_t n, width, segments;
  DType dtype;
  bool deviation;  // the square root of a variance

  explicit Reduction(const Args& x)
      : in(static_cast<const In*>(x.in)),
        out(static_cast<Out*>(x.out)),
        offsets(x),
        n(x.n),
        width(x.width),
        segments(x.segments),
        dtype(x.dtype),
        deviation(x.op == OpId::deviation) {}

  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto x = global_of(block, "values", in, n * width, dtype);
    const auto y = global_of(block, "y", out, segments * width, dtype);
    const auto o = offsets.bind(block);
    return BoundReduction<Reduction, std::decay_t<decltype(x)>, std::decay_t<decltype(y)>, std::decay_t<decltype(o)>>{
        *this, x, y, o};
  }
};

// Calls f(Reduction<...>) for the dtype and operator of `args`. Sums, products, exponentials and moments accumulate in
// SumOf<T>. An array of T is one of StoredAs<T>.
template <template <class> class SumOf = acc_t, template <class> class StoredAs = itself_t, class F>
void with_reduction(const Args& args, F f) {
  const auto each = [&](auto types, auto g) { dispatch(types, args.dtype, "segment_reduce", g); };
  const auto widened = [&](auto op) {
    each(AllTypes{}, [&](auto type) {
      using T = StoredAs<typename decltype(type)::type>;
      f(Reduction<T, sum_t<T>, typename decltype(op)::template of<SumOf<sum_t<T>>>>(args));
    });
  };
  const auto same = [&](auto op) {
    each(AllTypes{}, [&](auto type) {
      using T = StoredAs<typename decltype(type)::type>;
      f(Reduction<T, T, typename decltype(op)::template of<acc_t<T>>>(args));
    });
  };
  const auto floats = [&](auto op) {
    each(FloatTypes{}, [&](auto type) {
      using T = StoredAs<typename decltype(type)::type>;
      f(Reduction<T, T, typename decltype(op)::template of<SumOf<T>>>(args));
    });
  };
  const auto index = [&](auto op) {
    each(AllTypes{}, [&](auto type) {
      using T = StoredAs<typename decltype(type)::type>;
      f(Reduction<T, int64_t, typename decltype(op)::template of<acc_t<T>>>(args));
    });
  };
  const auto bits = [&](auto op) {
    each(BitTypes{}, [&](auto type) {
      using T = StoredAs<typename decltype(type)::type>;
      f(Reduction<T, T, typename decltype(op)::template of<acc_t<T>>>(args));
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
        using T = StoredAs<typename decltype(type)::type>;
        f(Reduction<T, T, Sum<SumOf<T>>, true>(args));
      });
    case OpId::logsumexp:
      return floats(MonoidOf<LogSumExp>{});
    case OpId::variance:
    case OpId::deviation:
      return floats(MonoidOf<Variance>{});
    case OpId::bitwise_and:
      return bits(MonoidOf<BitAnd>{});
    case OpId::bitwise_or:
      return bits(MonoidOf<BitOr>{});
    case OpId::bitwise_xor:
      return bits(MonoidOf<BitXor>{});
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

  // The value for the rows of a segment, from -1 to `segments`; it is 0 for rows that are in no segment.
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

// ---- softmax
//
// Each segment is reduced to its greatest value and its sum of exponentials; then every row computes its result from
// its own value and these two.

// The result of a row with value x, in a segment with the finished value v.
template <class T, class V>
TP_HD T softmax_of(T x, const V& v, bool logarithm) {
  using C = acc_t<T>;
  const C below = C(x) - C(v.max);
  return T(logarithm ? below - C(v.sum) : block::exponential(below) * C(v.sum));
}

template <class E, class X, class In, class Out, class O>
struct BoundSoftmax {
  using Value = typename E::Value;
  using A = decltype(Value::max);
  E e;
  X x;
  In in;
  Out out;
  O offsets;

  // The finished value of a segment. A sum of -1 stands for no segment, whose rows get 0.
  TP_HD Value value(int64_t segment, int64_t column) const {
    if (!offsets.exists(segment)) return {A(0), A(-1)};
    const Value v = in[segment * e.width + column];
    return finished(v);
  }
  // In place of the sum, what its rows need: the inverse or the logarithm. In a segment with +inf, all results are NaN,
  // as in torch.
  TP_HD Value finished(Value v) const {
    const A sum = v.max == detail::highest<A>() ? std::numeric_limits<A>::quiet_NaN() : v.sum;
    return {v.max, e.logarithm ? A(std::log(sum)) : A(1) / sum};
  }
  TP_HD typename E::Output result(typename E::Output own, Value v) const {
    return v.sum < A(0) ? typename E::Output(0) : softmax_of(own, v, e.logarithm);
  }
  TP_HD void store(int64_t row, int64_t column, Value v) const {
    const typename E::Output own = x[row * e.width + column];
    out[row * e.width + column] = result(own, v);
  }
};

template <class T, class A>
struct Softmax {
  using Value = Exponentials<A>;
  using Output = value_t<T>;
  const T* x;
  const Value* in;
  T* out;
  Offsets offsets;
  int64_t n, width, segments;
  bool logarithm;
  DType dtype;

  Softmax(const Args& args, const Value* values)
      : x(static_cast<const T*>(args.in)),
        in(values),
        out(static_cast<T*>(args.out)),
        offsets(args),
        n(args.n),
        width(args.width),
        segments(args.segments),
        logarithm(args.logarithm),
        dtype(args.dtype) {}

  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto from = global_of(block, "values", x, n * width, dtype);
    const auto values = block.global("sums", in, segments * width);
    const auto y = global_of(block, "y", out, n * width, dtype);
    const auto o = offsets.bind(block);
    return BoundSoftmax<Softmax, std::decay_t<decltype(from)>, std::decay_t<decltype(values)>,
                        std::decay_t<decltype(y)>, std::decay_t<decltype(o)>>{*this, from, values, y, o};
  }
};

// Calls f(Reduction<...>, Softmax<...>), of which the first finds what the second needs.
template <template <class> class SumOf = acc_t, template <class> class StoredAs = itself_t, class F>
void with_softmax(const Args& args, Context& context, F f) {
  dispatch(FloatTypes{}, args.dtype, "segment_softmax", [&](auto type) {
    using T = StoredAs<typename decltype(type)::type>;
    using A = SumOf<T>;
    auto* values = context.workspace<Exponentials<A>>(args.segments * args.width);
    Args sums = args;
    sums.out = values;
    f(Reduction<T, Exponentials<A>, LogSumExp<A>>(sums), Softmax<T, A>(args, values));
  });
}

// ---- runs the steps of a rung that reduces by `reduce(Reduction<...>)` and expands by `expand(Expansion<...>)`

template <template <class> class SumOf = acc_t, template <class> class StoredAs = itself_t, class Reduce, class Expand>
void with_step(const Args& args, Context& context, Reduce reduce, Expand expand) {
  if (args.step == Step::reduce) return with_reduction<SumOf, StoredAs>(args, reduce);
  if (args.step == Step::expand) return with_expansion(args, expand);
  with_softmax<SumOf, StoredAs>(args, context, [&](const auto& sums, const auto& rows) {
    reduce(sums);
    expand(rows);
  });
}

// For textbook kernels (core/narrow.h).
template <class Reduce, class Expand>
void with_wide_step(const Args& args, Context& context, Reduce reduce, Expand expand) {
  with_step<acc_t, narrow_t>(args, context, reduce, expand);
}

}  // namespace tp::segmented
