// The inner loop of the threaded rung: the rows of a panel, combined lane by lane.
//
// A panel is `rows` rows of `lanes` neighbouring elements, row r starting r * pitch after the first, and a last row of
// `tail` elements. Lane l becomes the combination of its column, in order. The loops over the lanes carry nothing from
// one to the next, so the compiler makes vectors of them, of the widest kind that the processor has.
#pragma once
#include "reduction/elements.h"

#define TP_INLINE __attribute__((always_inline)) inline

namespace tp::reduction {

constexpr int64_t max_lanes = 512;

template <class In>
struct Panel {
  const In* x;
  int64_t rows, pitch, lanes, tail;  // rows and lanes at least 1
};

namespace panel {

template <class T>
TP_INLINE bool is_nan(T x) {
  return std::is_floating_point<T>::value && !(x == x);
}

constexpr int unrolled = 8;  // rows between two accesses to a lane's accumulator

// For the rows from the second on, `unrolled` at a time: step(lane, first row, how many).
template <class In, class F>
TP_INLINE void each(const Panel<In>& p, F step) {
  int64_t r = 1;
  for (; r + unrolled <= p.rows; r += unrolled) {
    for (int64_t l = 0; l < p.lanes; ++l) step(l, r, std::integral_constant<int, unrolled>{});
  }
  for (; r < p.rows; ++r) {
    for (int64_t l = 0; l < p.lanes; ++l) step(l, r, std::integral_constant<int, 1>{});
  }
  for (int64_t l = 0; l < p.tail; ++l) step(l, r, std::integral_constant<int, 1>{});
}

template <class M, bool mirrored, class In>
TP_INLINE void combine(const Panel<In>& p, typename M::Acc* __restrict acc) {
  for (int64_t l = 0; l < p.lanes; ++l) acc[l] = operand<M>(p.x[l], 0, mirrored);
  each(p, [&](int64_t l, int64_t r, auto count) __attribute__((always_inline)) {
    auto running = acc[l];
    for (int i = 0; i < count; ++i) running = M::combine(running, operand<M>(p.x[(r + i) * p.pitch + l], 0, mirrored));
    acc[l] = running;
  });
}

// Values, and the rows they stand in, as two arrays of elements of one size.
template <class M, bool mirrored, class In>
TP_INLINE void locate(const Panel<In>& p, typename M::Acc* __restrict acc) {
  using Most = MaxOf<In>;
  using Value = typename Most::Acc;
  using Row = typename std::conditional<sizeof(Value) == 8, int64_t, int>::type;
  Value value[max_lanes];
  Row row[max_lanes];
  for (int64_t l = 0; l < p.lanes; ++l) value[l] = operand<Most>(p.x[l], 0, mirrored), row[l] = 0;
  each(p, [&](int64_t l, int64_t r, auto count) __attribute__((always_inline)) {
    Value most = value[l];
    Row at = row[l];
    for (int i = 0; i < count; ++i) {
      const Value x = operand<Most>(p.x[(r + i) * p.pitch + l], 0, mirrored);
      const bool keep = (most >= x) | is_nan(most);
      most = keep ? most : x;
      at = keep ? at : Row(r + i);
    }
    value[l] = most;
    row[l] = at;
  });
  for (int64_t l = 0; l < p.lanes; ++l) acc[l] = {value[l], row[l]};
}

// The maxima first, then the exponentials of the distances from them.
template <class M, class In>
TP_INLINE void exponentiate(const Panel<In>& p, typename M::Acc* __restrict acc) {
  using A = acc_t<In>;
  A most[max_lanes];
  combine<MaxOf<In>, false>(p, most);
  for (int64_t l = 0; l < p.lanes; ++l) acc[l] = {most[l], 0};
  for (int64_t r = 0; r <= p.rows; ++r) {
    for (int64_t l = 0; l < (r < p.rows ? p.lanes : p.tail); ++l) {
      const A x = A(p.x[r * p.pitch + l]);
      acc[l].sum += x == most[l] ? A(1) : std::exp(x - most[l]);
    }
  }
}

template <class M, class In>
TP_INLINE void reduce(const Panel<In>& p, bool mirrored, typename M::Acc* acc) {
  if constexpr (M::id == OpId::argmax) {
    mirrored ? locate<M, true>(p, acc) : locate<M, false>(p, acc);
  } else if constexpr (M::id == OpId::max) {
    mirrored ? combine<M, true>(p, acc) : combine<M, false>(p, acc);
  } else if constexpr (M::id == OpId::logsumexp) {
    exponentiate<M>(p, acc);
  } else {
    combine<M, false>(p, acc);
  }
}

#if defined(__x86_64__) && defined(__GNUC__)
template <class M, class In>
__attribute__((target("avx2"))) void reduce_avx2(const Panel<In>& p, bool mirrored, typename M::Acc* acc) {
  reduce<M>(p, mirrored, acc);
}
#endif

}  // namespace panel

// acc[l] = the combination of lane l; what argmax counts are rows of the panel.
template <class M, class In>
void reduce_panel(const Panel<In>& p, bool mirrored, typename M::Acc* acc) {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return panel::reduce_avx2<M>(p, mirrored, acc);
#endif
  panel::reduce<M>(p, mirrored, acc);
}

}  // namespace tp::reduction
