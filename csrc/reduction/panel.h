// The inner loops of the threaded rung: the rows of a panel, combined lane by lane.
//
// A panel has `rows` rows with `lanes` elements, and a last row with `tail` elements. Lane l becomes the combination of
// its column. The loops over lanes carry no dependence, so the compiler vectorizes them. A few rows at a time are
// combined by a tree before they are combined with the lanes. They are few, so that memory is still accessed nearly in
// order of addresses, which matters most.
//
// A panel of halves is staged: a few rows at a time are converted as an array, which is faster than in a loop, and
// become a panel of floats in the cache. Where lanes are not neighbours in memory, half types are transposed first. All
// of their values are floats, so the bits of results are those of the loops over halves.
#pragma once
#include <array>
#include <cstring>

#include "block/convert.h"
#include "block/exponential.h"
#include "block/transpose.h"
#include "reduction/elements.h"

#define TP_INLINE __attribute__((always_inline)) inline

namespace tp::reduction {

constexpr int64_t max_lanes = 1024;

// If step_ is 1, element (r, l) is x[r * pitch + l]; if step_ is 0, it is x[r + l * pitch]. A part of a panel begins at
// row `first` of the whole. lanes_ is 0 if only the member `lanes` knows the value. If a narrow panel is `followed` by
// as many elements as a row has, its last row is read as a whole, and `fill`, which changes no lane, takes their place.
template <class In, int step_, int lanes_>
struct Panel {
  const In* x;
  int64_t rows, pitch, lanes, tail;  // rows and lanes at least 1; tail is 0 if step_ is 0
  bool by_four;                      // whether trees combine at most four rows, not eight
  int64_t first = 0;
  bool followed = false;
  In fill = {};
  static constexpr bool narrow = lanes_ > 0;
  // bfloat16 is converted by two simple instructions, in any loop over neighbours.
  static constexpr bool is_staged = std::is_same<In, half>::value || (std::is_same<In, bfloat16>::value && step_ == 0);

  TP_INLINE In at(int64_t r, int64_t l) const { return step_ == 1 ? x[r * pitch + l] : x[r + l * pitch]; }
  TP_INLINE int64_t width() const { return narrow ? lanes_ : lanes; }
};

// An element that changes no combination.
template <class In, class M>
TP_INLINE In identity_of(bool mirrored) {
  if constexpr (M::id == OpId::max || M::id == OpId::argmax || M::id == OpId::logsumexp) {
    const In lowest = In(detail::lowest<acc_t<In>>());
    return mirrored ? mirror(lowest) : lowest;
  } else {
    return In(M::identity());
  }
}

// Calls f(panel) with a few rows at a time, staged: a multiple of eight but at the end, so that trees combine the same
// rows as in the whole panel.
template <class In, int step_, int lanes_, class F>
TP_INLINE void each_staged(const Panel<In, step_, lanes_>& p, F f) {
  constexpr int64_t line = 64 / sizeof(In), slice = 2 * line, enough = 2048, most = 9 * max_lanes;
  alignas(64) float staged[most];
  const int64_t at_once = tp::max(int64_t(8), enough / p.lanes / 8 * 8);
  for (int64_t r = 0; r < p.rows; r += at_once) {
    const int64_t rows = tp::min(at_once, p.rows - r), tail = r + rows == p.rows ? p.tail : 0;
    if constexpr (step_ == 0) {
      alignas(64) In transposed[most];
      transpose(p.lanes, rows, p.x + r, p.pitch, transposed, p.lanes);
      if constexpr (std::is_same<In, half>::value) {
        convert(rows * p.lanes, transposed, staged);
      } else {  // compiled with this function, so on its vectors
        for (int64_t i = 0; i < rows * p.lanes; ++i) staged[i] = transposed[i];
      }
    } else if (p.pitch == p.lanes) {
      convert(rows * p.lanes + tail, p.x + r * p.pitch, staged);
    } else {
      // The rows are read side by side, and the next ones prefetched, because the processor does not predict rows that
      // are apart in memory.
      for (int64_t l = 0; l < p.lanes; l += slice) {
        for (int64_t i = 0; i < rows; ++i) {
          const In* x = p.x + (r + i) * p.pitch + l;
          __builtin_prefetch(x + at_once * p.pitch);
          __builtin_prefetch(x + at_once * p.pitch + line);
          convert(tp::min(slice, p.lanes - l), x, staged + i * p.lanes + l);
        }
      }
      convert(tail, p.x + (r + rows) * p.pitch, staged + rows * p.lanes);
    }
    f(Panel<float, 1, lanes_>{staged, rows, p.lanes, p.lanes, tail, p.by_four, r});
  }
}

// The last row of a panel as one that is full: all lanes are read, without a branch, and those after the tail become
// `fill`.
template <class In, int lanes>
struct FilledRow {
  using Word = Bits<sizeof(In)>;
  const In* x;
  const Word* mask;
  Word rest;

  FilledRow(const Panel<In, 1, lanes>& p, int64_t r) : x(p.x + r * p.pitch), mask(masks().data() + lanes - p.tail) {
    std::memcpy(&rest, &p.fill, sizeof(In));
  }

  TP_INLINE In at(int64_t, int64_t l) const {
    Word bits;
    std::memcpy(&bits, x + l, sizeof(In));
    bits = Word((bits & mask[l]) | (rest & ~mask[l]));
    In filled;
    std::memcpy(&filled, &bits, sizeof(In));
    return filled;
  }

 private:
  static const auto& masks() {
    static constexpr auto ones_and_zeros = [] {
      std::array<Word, 2 * lanes> words{};
      for (int l = 0; l < lanes; ++l) words[size_t(l)] = Word(~Word(0));
      return words;
    }();
    return ones_and_zeros;
  }
};

template <int n>
using Count = std::integral_constant<int, n>;

// Calls f(panel, lane, first row, number of rows, at most `most`), where `panel` has these rows.
template <int most, class In, int step_, int lanes_, class F>
TP_INLINE void each_step(const Panel<In, step_, lanes_>& p, F f) {
  if constexpr (Panel<In, step_, lanes_>::is_staged) {
    each_staged(p, [&](const auto& staged) __attribute__((always_inline)) { each_step<most>(staged, f); });
  } else {
    int64_t r = 0;
    const auto step = [&](int64_t lanes, auto count) __attribute__((always_inline)) {
      for (int64_t l = 0; l < lanes; ++l) f(p, l, r, count);
      r += count;
    };
    while (r + most <= p.rows) step(p.width(), Count<most>{});
    if (most > 4 && r + 4 <= p.rows) step(p.width(), Count<tp::min(most, 4)>{});
    while (r < p.rows) step(p.width(), Count<1>{});
    if constexpr (lanes_ > 0) {
      if (p.followed && p.tail > 0) {
        const FilledRow<In, lanes_> row(p, r);
        for (int64_t l = 0; l < lanes_; ++l) f(row, l, 0, Count<1>{});
        return;
      }
    }
    step(p.tail, Count<1>{});
  }
}

// Combines rows r to r + count - 1 of lane l.
template <class M, int count, bool mirrored, class P>
TP_INLINE typename M::Acc tree(const P& p, int64_t r, int64_t l) {
  if constexpr (count == 1) {
    return operand<M>(p.at(r, l), 0, mirrored);
  } else {
    // Read first, because processors prefetch what is read in ascending order.
    const auto earlier = tree<M, count / 2, mirrored>(p, r, l);
    return M::combine(earlier, tree<M, count / 2, mirrored>(p, r + count / 2, l));
  }
}

// A few lanes as vectors of 16 bytes, which every processor of 64 bits has: the compiler would combine such short
// arrays element by element.
template <class T>
struct Vectors {
  typedef T Vector __attribute__((vector_size(16)));
  static constexpr int width = 16 / sizeof(T);
};

template <class Vector>
TP_INLINE bool has_bits(const Vector& x) {
  uint64_t halves[2];
  std::memcpy(halves, &x, sizeof(halves));
  return (halves[0] | halves[1]) != 0;
}
template <int lanes, class T>
TP_INLINE bool has_bits(const T* x) {
  typename Vectors<T>::Vector vectors[lanes / Vectors<T>::width], all = {};
  std::memcpy(vectors, x, sizeof(vectors));
  for (const auto& vector : vectors) all |= vector;
  return has_bits(all);
}

// The greatest number of each lane, ignoring NaN, which takes one instruction per element. NaN is searched for
// separately, which takes two instructions per pair. Returns whether there is a NaN.
template <class M, bool mirrored, class In, int step, int lanes>
TP_INLINE bool take_greatest(const Panel<In, step, lanes>& p, typename M::Acc* __restrict acc) {
  using A = typename M::Acc;
  using Flag = typename std::conditional<sizeof(A) == 8, int64_t, int>::type;
  Flag nan[tp::max(lanes, 1)];
  for (int64_t l = 0; l < p.width(); ++l) acc[l] = M::identity(), nan[l] = 0;
  each_step<8>(p, [&](const auto& p, int64_t l, int64_t r, auto count) __attribute__((always_inline)) {
    A most = acc[l];
    Flag found = nan[l];
    for (int i = 0; i < count; i += 2) {
      const A x = operand<M>(p.at(r + i, l), 0, mirrored);
      const A y = i + 1 < count ? operand<M>(p.at(r + i + 1, l), 0, mirrored) : x;
      const A greater = y > x ? y : x;
      most = greater > most ? greater : most;
      found |= Flag(__builtin_isunordered(x, y));
    }
    acc[l] = most;
    nan[l] = found;
  });
  return has_bits<lanes>(nan);
}

// Combines each lane with acc[l]. A panel may be given in pieces, one after another, whose numbers of rows are
// multiples of eight except for the last one.
template <class M, bool mirrored, class In, int step, int lanes>
TP_INLINE void add_panel(const Panel<In, step, lanes>& p, typename M::Acc* __restrict acc) {
  using Acc = typename M::Acc;
  const auto add = [&](const auto& p, int64_t l, int64_t r, auto count) __attribute__((always_inline)) {
    acc[l] = M::combine(acc[l], Acc(tree<leaf_t<In, M>, count.value, mirrored>(p, r, l)));
  };
  if (!p.narrow && p.by_four) {
    each_step<(M::id == OpId::max ? 1 : 4)>(p, add);
  } else {
    each_step<8>(p, add);
  }
}

template <class M, bool mirrored, class In, int step, int lanes>
TP_INLINE void combine(const Panel<In, step, lanes>& p, typename M::Acc* __restrict acc) {
  if constexpr (M::id == OpId::max && lanes > 0 && std::is_floating_point<typename M::Acc>::value) {
    if (!take_greatest<M, mirrored>(p, acc)) return;
  }
  for (int64_t l = 0; l < p.width(); ++l) acc[l] = M::identity();
  add_panel<M, mirrored>(p, acc);
}

// The values and the rows that they are in, as two arrays with elements of the same size.
template <class M, bool mirrored, class In, int step, int lanes>
TP_INLINE void locate(const Panel<In, step, lanes>& p, typename M::Acc* __restrict acc) {
  using Most = MaxOf<In>;
  using Value = typename Most::Acc;
  using Row = typename std::conditional<sizeof(Value) == 8, int64_t, int>::type;
  Value value[max_lanes];
  Row row[max_lanes];
  for (int64_t l = 0; l < p.lanes; ++l) value[l] = Most::identity(), row[l] = 0;
  each_step<4>(p, [&](const auto& p, int64_t l, int64_t r, auto count) __attribute__((always_inline)) {
    Value most = value[l];
    Row at = row[l];
    for (int i = 0; i < count; ++i) {
      const Value x = operand<Most>(p.at(r + i, l), 0, mirrored);
      const bool keep = (most >= x) | is_nan(most);
      most = keep ? most : x;
      at = keep ? at : Row(p.first + r + i);
    }
    value[l] = most;
    row[l] = at;
  });
  for (int64_t l = 0; l < p.lanes; ++l) acc[l] = {value[l], row[l]};
}

// sum[l] = the sum of exp(x - from[l]) over lane l.
template <class In, int step, int lanes, class Sum>
TP_INLINE void sum_exponentials(const Panel<In, step, lanes>& p, const acc_t<In>* from, Sum* __restrict sum) {
  for (int64_t l = 0; l < p.width(); ++l) sum[l] = 0;
  const auto add = [&](const auto& p, int64_t l, int64_t r, auto) __attribute__((always_inline)) {
    sum[l] += Sum(block::exponential(acc_t<In>(p.at(r, l)) - from[l]));
  };
  each_step<1>(p, add);
}

// What is subtracted from the elements of each lane, whose maximum is known: 0 if that is not finite.
template <class A>
TP_INLINE void shifts_of(const A* most, int64_t lanes, A* from) {
  for (int64_t l = 0; l < lanes; ++l) from[l] = most[l] - most[l] == 0 ? most[l] : A(0);
}
// A maximum that is not finite is itself the result, so its sum is 1.
template <class M, class A, class Sum>
TP_INLINE void store_exponentials(const A* most, const A* from, const Sum* sum, int64_t lanes,
                                  typename M::Acc* __restrict acc) {
  for (int64_t l = 0; l < lanes; ++l) acc[l] = {most[l], from[l] == most[l] ? sum[l] : Sum(1)};
}

// First computes the maxima, then the exponentials of the distances from them: without branches, so that the loop is
// vectorized.
template <class M, class In, int step, int lanes>
TP_INLINE void exponentiate(const Panel<In, step, lanes>& p, typename M::Acc* __restrict acc) {
  acc_t<In> most[max_lanes], from[max_lanes];
  decltype(acc->sum) sum[max_lanes];
  combine<MaxOf<In>, false>(p, most);
  shifts_of(most, p.lanes, from);
  sum_exponentials(p, from, sum);
  store_exponentials<M>(most, from, sum, p.lanes, acc);
}

// acc[l] = the combination of lane l; the indices of argmax are rows of the panel.
template <class M, bool mirrored, class P>
TP_INLINE void reduce_panel(const P& p, typename M::Acc* acc) {
  if constexpr (M::id == OpId::argmax) {
    locate<M, mirrored>(p, acc);
  } else if constexpr (M::id == OpId::logsumexp) {
    exponentiate<M>(p, acc);
  } else {
    combine<M, mirrored>(p, acc);
  }
}

// M::combine of two lanes, or of two vectors of lanes.
template <class M>
struct Combine {
  template <class T>
  TP_INLINE T operator()(T earlier, T later) const {
    if constexpr (M::id == OpId::sum) {
      return earlier + later;
    } else if constexpr (M::id == OpId::prod) {
      return earlier * later;
    } else if constexpr (M::id == OpId::max) {
      return (earlier >= later) | (earlier != earlier) ? earlier : later;
    } else {
      return M::combine(earlier, later);
    }
  }
};
// The same for maxima without NaN: a single instruction.
struct Greater {
  template <class T>
  TP_INLINE T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};

// Combines lanes l, l + columns, l + 2 columns, ... into one, for l below `columns`.
template <class M, class F>
TP_INLINE void fold_by(F combine, typename M::Acc* acc, int64_t groups, int64_t columns) {
  for (int64_t left = groups; left > 1;) {
    const int64_t kept = (left + 1) / 2, other = kept * columns, pairs = (left - kept) * columns;
    for (int64_t l = 0; l < pairs; ++l) acc[l] = combine(acc[l], acc[l + other]);
    left = kept;
  }
}
template <class M>
TP_INLINE void fold(typename M::Acc* acc, int64_t groups, int64_t columns) {
  if (groups == 1) return;
  if constexpr (M::id == OpId::max) {
    int nan = 0;
    for (int64_t l = 0; l < groups * columns; ++l) nan |= is_nan(acc[l]);
    if (!nan) return fold_by<M>(Greater{}, acc, groups, columns);
  }
  fold_by<M>(Combine<M>{}, acc, groups, columns);
}

// The same for one column and a constant number of lanes, a power of two.
template <int count, class F, class T>
TP_INLINE void halve(F combine, T* x) {
  if constexpr (count > 1) {
    for (int i = 0; i < count / 2; ++i) x[i] = combine(x[i], x[i + count / 2]);
    halve<count / 2>(combine, x);
  }
}
template <class M, int lanes>
TP_INLINE void fold(typename M::Acc* acc) {
  if constexpr (M::id == OpId::sum || M::id == OpId::prod || M::id == OpId::max) {
    using V = Vectors<typename M::Acc>;
    typename V::Vector x[lanes / V::width];
    std::memcpy(x, acc, sizeof(x));
    const auto fold_vectors = [&](auto combine) __attribute__((always_inline)) {
      halve<lanes / V::width>(combine, x);
      std::memcpy(acc, x, sizeof(x[0]));
      halve<V::width>(combine, acc);
    };
    if constexpr (M::id == OpId::max) {
      auto nan = x[0] != x[0];
      for (int i = 1; i < lanes / V::width; ++i) nan |= x[i] != x[i];
      if (!has_bits(nan)) return fold_vectors(Greater{});
    }
    fold_vectors(Combine<M>{});
  } else {
    halve<lanes>(Combine<M>{}, acc);
  }
}

// The index of the first of n elements whose operand is `value`, or NaN if `value` is NaN.
template <class M, bool mirrored, class In>
TP_INLINE int64_t find(const In* x, int64_t n, typename M::Acc value) {
  constexpr int64_t chunk = 64;
  const auto is = [&](int64_t i) __attribute__((always_inline)) {
    const auto y = operand<M>(x[i], 0, mirrored);
    return int(y == value) | (int(is_nan(y)) & int(is_nan(value)));
  };
  int64_t first = 0;
  for (; first + chunk < n; first += chunk) {
    int found = 0;
    for (int64_t i = 0; i < chunk; ++i) found |= is(first + i);
    if (found) break;
  }
  while (!is(first)) ++first;
  return first;
}

}  // namespace tp::reduction
