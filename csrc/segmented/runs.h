// Reductions and softmax of runs of consecutive elements on the vectors of the host. A run is a segment of one column,
// or the part of it that lies in a share. Runs are listed by their borders, so one vectorized loop serves short runs,
// too.
//
// Lane j of a vector combines the elements of a run whose index is j modulo `lanes`; then halves of the lanes are
// combined until one is left. So the order depends on the length of the run only, not on shares, threads or vectors.
#pragma once
#include <algorithm>
#include <cstring>

#include "block/on_vectors.h"
#include "segmented/combine.h"
#include "segmented/elements.h"

namespace tp::segmented {

constexpr int lanes = 8;

template <class A, int count>
struct VectorOf {
  typedef A type __attribute__((vector_size(count * sizeof(A))));
};

// `lanes` values, in vectors of at most 32 bytes: GCC keeps wider ones in memory if the instructions do not have them.
template <class A_>
struct Lanes {
  using A = std::conditional_t<std::is_same<A_, bool>::value, uint8_t, A_>;
  static constexpr int width = tp::min(lanes, 32 / int(sizeof(A))), parts = lanes / width;
  using Part = typename VectorOf<A, width>::type;
  Part part[parts];

  // The lanes f(0), f(1), ..., one function per part.
  template <class F>
  static Lanes of(F f) {
    Lanes v;
#pragma GCC unroll 2
    for (int p = 0; p < parts; ++p) v.part[p] = f(p);
    return v;
  }
  static Lanes all(A value) {
    return of([=](int) { return value - Part{}; });
  }
  template <class T>
  static Lanes load(const T* x) {
    return of([=](int p) {
      Part to;
      if constexpr (sizeof(A) == sizeof(T)) {
        memcpy(&to, x + p * width, sizeof(to));
      } else if constexpr (std::is_arithmetic<T>::value && !std::is_same<T, bool>::value) {
        typename VectorOf<T, width>::type from;
        memcpy(&from, x + p * width, sizeof(from));
        to = __builtin_convertvector(from, Part);
      } else {
        A values[width];
        for (int k = 0; k < width; ++k) values[k] = A(x[p * width + k]);
        memcpy(&to, values, sizeof(to));
      }
      return to;
    });
  }
};

// M::combine of every lane of two vectors.
template <class M, class V>
V combine_vectors(V earlier, V later) {
  if constexpr (M::id == OpId::max || M::id == OpId::min) {
    return combine<M>(earlier, later);
  } else if constexpr (M::id == OpId::prod) {
    return earlier * later;
  } else if constexpr (M::id == OpId::bitwise_and) {
    return earlier & later;
  } else if constexpr (M::id == OpId::bitwise_or) {
    return earlier | later;
  } else if constexpr (M::id == OpId::bitwise_xor) {
    return earlier ^ later;
  } else {
    static_assert(M::id == OpId::sum);
    return earlier + later;
  }
}

template <class M, class A>
Lanes<A> combine_lanes(const Lanes<A>& earlier, const Lanes<A>& later) {
  return Lanes<A>::of([&](int p) { return combine_vectors<M>(earlier.part[p], later.part[p]); });
}

template <class M, int count, class V>
typename M::Acc combine_halves(V v) {
  using A = std::decay_t<decltype(v[0])>;
  if constexpr (count == 1) {
    return typename M::Acc(v[0]);
  } else {
    typename VectorOf<A, count / 2>::type low, high;
    memcpy(&low, &v, sizeof(low));
    memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof(low), sizeof(high));
    return combine_halves<M, count / 2>(combine_vectors<M>(low, high));
  }
}
template <class M, class A>
typename M::Acc combine_halves(const Lanes<A>& v) {
  if constexpr (Lanes<A>::parts == 1) return combine_halves<M, lanes>(v.part[0]);
  if constexpr (Lanes<A>::parts == 2) return combine_halves<M, lanes / 2>(combine_vectors<M>(v.part[0], v.part[1]));
}

// The first n lanes of `v`, and the other ones of `rest`.
template <class A>
Lanes<A> first_lanes(const Lanes<A>& v, int64_t n, const Lanes<A>& rest) {
  using L = Lanes<A>;
  return L::of([&](int p) {
    using Index = decltype(v.part[p] == v.part[p]);
    Index index;
    for (int k = 0; k < L::width; ++k) index[k] = p * L::width + k;
    return index < std::decay_t<decltype(index[0])>(n) ? v.part[p] : rest.part[p];
  });
}

// The lanes x[0] to x[n - 1], n < lanes, and identities in the other lanes. If `readable` elements allow it, the
// elements after them are read, too: a loop of unpredictable length costs more.
template <class M, class T>
Lanes<typename M::Acc> load_last(const T* x, int64_t n, int64_t readable) {
  using L = Lanes<typename M::Acc>;
  const L rest = L::all(M::identity());
  if (readable >= lanes) return first_lanes(L::load(x), n, rest);
  typename L::A values[lanes];
  for (int j = 0; j < lanes; ++j) values[j] = j < n ? typename L::A(x[j]) : typename L::A(M::identity());
  return L::load(values);
}

// Combines the n elements of a run; `readable`, at least n, is how many elements may be read from x on.
template <class M, class T>
typename M::Acc combine_elements(const T* x, int64_t n, int64_t readable) {
  using L = Lanes<typename M::Acc>;
  if (n < lanes) return combine_halves<M>(load_last<M>(x, n, readable));
  L running = L::load(x);
  int64_t i = lanes;
  for (; i + lanes <= n; i += lanes) running = combine_lanes<M>(running, L::load(x + i));
  if (i < n) running = combine_lanes<M>(running, load_last<M>(x + i, n - i, readable - i));
  return combine_halves<M>(running);
}

constexpr int64_t chunk = 64 * lanes;

// Floats are added in float32 within a chunk, and the chunks in double, so the error does not grow with the length.
template <class M, class T>
typename M::Acc combine_run(const T* x, int64_t n, int64_t readable) {
  using Acc = typename M::Acc;
  if constexpr (M::id == OpId::sum && is_floating<T>) {
    Acc sum = Acc(combine_elements<Sum<acc_t<T>>>(x, tp::min(n, chunk), readable));
    for (int64_t i = chunk; i < n; i += chunk)
      sum += Acc(combine_elements<Sum<acc_t<T>>>(x + i, tp::min(n - i, chunk), readable - i));
    return sum;
  } else {
    return combine_elements<M>(x, n, readable);
  }
}

// Finds the extremum of a run that begins at row `begin`, and then the first row that has it.
template <class M, class T>
typename M::Acc find_in_run(const T* x, int64_t begin, int64_t n, int64_t readable) {
  using A = decltype(M::Acc::value);
  using Extremum = std::conditional_t<M::id == OpId::argmax, Max<A>, Min<A>>;
  if (n == 0) return M::identity();
  const A most = combine_run<Extremum>(x, n, readable);
  int64_t k = 0;
  while (!(A(x[k]) == most || (most != most && A(x[k]) != A(x[k])))) ++k;
  return {most, begin + k};
}

// exp(x - most). An infinite maximum has a distance of 0 from itself. A selection of bits is not a branch, so loops
// vectorize.
template <class A>
A distance_exponential(A x, A most) {
  using Bits = std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>;
  A distance = x - most;
  Bits bits;
  memcpy(&bits, &distance, sizeof(bits));
  bits &= Bits(0) - Bits(x != most);
  memcpy(&distance, &bits, sizeof(bits));
  return block::exponential(distance);
}

// The maximum of a run, and the sum of the exponentials of the distances from it, which is computed as other sums are.
template <class M, class T>
typename M::Acc exponentiate_run(const T* x, int64_t n, int64_t readable) {
  using A = acc_t<T>;
  using Wide = decltype(M::Acc::sum);
  if (n == 0) return M::identity();
  const A most = combine_run<Max<A>>(x, n, readable);
  Wide sum = 0;
  A part[chunk];
  for (int64_t i = 0; i < n; i += chunk) {
    const int64_t count = tp::min(chunk, n - i);
    for (int64_t k = 0; k < count; ++k) part[k] = distance_exponential(A(x[i + k]), most);
    sum += Wide(combine_elements<Sum<A>>(part, count, chunk));
  }
  return {Wide(most), sum};
}

// The moments of n values from their distances from about their mean: the sum of these, which is 0 for the exact mean,
// corrects it and the sum of their squares.
template <class A>
Moments<A> corrected_moments(int64_t n, A mean, A sum, A squares) {
  const A more = sum / A(n), rest = squares - sum * more;
  return {A(n), mean, more, rest < A(0) ? A(0) : rest};
}

// The moments of n values `step` apart, one value after another: where their sum is not finite, although they may be.
template <class M, class T>
typename M::Acc moments_one_by_one(const T* x, int64_t n, int64_t step) {
  auto moments = M::identity();
  for (int64_t i = 0; i < n; ++i) moments = M::append(moments, decltype(M::Acc::mean)(x[i * step]));
  return moments;
}

template <class M, class T>
typename M::Acc moments_of_run(const T* x, int64_t n, int64_t readable) {
  using A = decltype(M::Acc::mean);
  using L = Lanes<A>;
  if (n == 0) return M::identity();
  const A mean = combine_elements<Sum<A>>(x, n, readable) / A(n);
  if (mean - mean != A(0)) return moments_one_by_one<M>(x, n, 1);
  L sum{}, squares{};
  const auto away = [=](const L& v) { return L::of([&](int p) { return v.part[p] - mean; }); };
  const auto add = [&](const L& distance) {
    sum = L::of([&](int p) { return sum.part[p] + distance.part[p]; });
    squares = L::of([&](int p) { return squares.part[p] + distance.part[p] * distance.part[p]; });
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) add(away(L::load(x + i)));
  if (i < n) add(first_lanes(away(load_last<Sum<A>>(x + i, n - i, readable - i)), n - i, L{}));
  return corrected_moments(n, mean, combine_halves<Sum<A>>(sum), combine_halves<Sum<A>>(squares));
}

// Reduces `count` runs, of which run i is x[borders[i]] to x[borders[i + 1] - 1]. n elements are readable; x[0] is in
// row `first`.
template <class M, class T>
void reduce_runs(const T* x, int64_t n, const int64_t* borders, int64_t count, typename M::Acc* results) {
  on_vectors([=] {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = borders[i], length = borders[i + 1] - begin, readable = n - begin;
      if constexpr (M::id == OpId::argmax || M::id == OpId::argmin) {
        results[i] = find_in_run<M>(x + begin, begin, length, readable);
      } else if constexpr (M::id == OpId::logsumexp) {
        results[i] = exponentiate_run<M>(x + begin, length, readable);
      } else if constexpr (M::id == OpId::variance) {
        results[i] = moments_of_run<M>(x + begin, length, readable);
      } else {
        results[i] = combine_run<M>(x + begin, length, readable);
      }
    }
  });
}

// Computes the softmax of `count` runs, each with its own maximum and sum of exponentials; a sum of -1 gives 0.
template <class T, class V>
void normalize_runs(const T* x, const int64_t* borders, int64_t count, const V* values, bool logarithm, T* out) {
  on_vectors([=] {
    const auto write = [&](auto constant) {  // in a loop that computes only one of the two
      for (int64_t i = 0; i < count; ++i) {
        const V value = values[i];
        const int64_t begin = borders[i], end = borders[i + 1];
        if (value.sum < 0) {
          std::fill(out + begin, out + end, T(0));
          continue;
        }
        TP_INDEPENDENT
        for (int64_t k = begin; k < end; ++k) out[k] = softmax_of(x[k], value, constant.value);
      }
    };
    logarithm ? write(std::true_type{}) : write(std::false_type{});
  });
}

// ---- the same for a segment of several columns, which are the lanes; each has the bits of a run of its own

constexpr int64_t columns_per_strip = 256;

// `count` of `width` columns of rows.
struct Columns {
  int64_t width, count;

  // Calls f(i, at, n) for rows begin to end - 1: n elements from i on are next to each other. They are rows `at /
  // count` and later of each `period` rows, which are taken together if they are next to each other, too.
  template <class F>
  void each(int64_t begin, int64_t end, int64_t period, F f) const {
    const int64_t together = count == width ? period : 1;
    for (int64_t row = begin; row < end; row += together) {
      f(row * width, (row - begin) % period * count, tp::min(together, end - row) * count);
    }
  }
};

// The elements of a column are added in the order of combine_elements: the lanes of a run are here the rows modulo
// `lanes`.
template <class M, class T>
void exponentiate_rows(const T* x, int64_t rows, const Columns columns, typename M::Acc* results) {
  on_vectors([=] {
    using A = acc_t<T>;
    const int64_t count = columns.count, period = tp::min(rows, int64_t(lanes)), filled = period * count;
    A most[lanes * columns_per_strip], part[lanes * columns_per_strip];
    std::fill(most, most + tp::max(filled, count), Max<A>::identity());
    columns.each(0, rows, period, [&](int64_t first, int64_t at, int64_t n) {
      for (int64_t j = 0; j < n; ++j) most[at + j] = combine<Max<A>>(most[at + j], A(x[first + j]));
    });
    for (int64_t at = count; at < filled; at += count) {
      for (int64_t j = 0; j < count; ++j) most[j] = combine<Max<A>>(most[j], most[at + j]);
    }
    for (int64_t at = count; at < filled; at += count) std::copy(most, most + count, most + at);
    for (int64_t j = 0; j < count; ++j) results[j] = {most[j], 0};
    for (int64_t row = 0; row < rows; row += chunk) {
      std::fill(part, part + filled, A(0));
      columns.each(row, tp::min(row + chunk, rows), period, [&](int64_t first, int64_t at, int64_t n) {
        for (int64_t j = 0; j < n; ++j) part[at + j] += distance_exponential(A(x[first + j]), most[at + j]);
      });
      for (int64_t half = lanes / 2; half > 0; half /= 2) {
        for (int64_t j = 0; j < tp::min(half, period - half) * count; ++j) part[j] += part[half * count + j];
      }
      for (int64_t j = 0; j < count; ++j) results[j].sum += part[j];
    }
  });
}

template <class M, class T>
void moments_of_rows(const T* x, int64_t rows, const Columns columns, typename M::Acc* results) {
  on_vectors([=] {
    using A = decltype(M::Acc::mean);
    const int64_t width = columns.width, count = columns.count;
    A mean[columns_per_strip] = {}, sum[columns_per_strip] = {}, squares[columns_per_strip] = {};
    for (const T* row = x; row != x + rows * width; row += width) {
      for (int64_t j = 0; j < count; ++j) mean[j] += A(row[j]);
    }
    for (int64_t j = 0; j < count; ++j) mean[j] /= A(rows);
    for (const T* row = x; row != x + rows * width; row += width) {
      for (int64_t j = 0; j < count; ++j) {
        const A distance = A(row[j]) - mean[j];
        sum[j] += distance;
        squares[j] += distance * distance;
      }
    }
    for (int64_t j = 0; j < count; ++j) {
      const bool finite = mean[j] - mean[j] == A(0);
      results[j] = rows == 0 ? M::identity()
                   : finite  ? corrected_moments(rows, mean[j], sum[j], squares[j])
                             : moments_one_by_one<M>(x + j, rows, width);
    }
  });
}

template <class T, class V>
void normalize_rows(const T* x, int64_t rows, const Columns columns, const V* values, bool logarithm, T* out) {
  on_vectors([=] {
    using C = acc_t<T>;
    const int64_t count = columns.count, period = tp::max(2 * lanes / count, int64_t(1));
    C most[columns_per_strip], sum[columns_per_strip];
    for (int64_t at = 0; at < period * count; at += count) {
      for (int64_t j = 0; j < count; ++j) {
        most[at + j] = C(values[j].max);
        sum[at + j] = C(values[j].sum);
      }
    }
    const auto write = [&](auto constant) {  // in a loop that computes only one of the two
      columns.each(0, rows, period, [&](int64_t first, int64_t at, int64_t n) {
        TP_INDEPENDENT
        for (int64_t j = 0; j < n; ++j) {
          out[first + j] = softmax_of(x[first + j], Exponentials<C>{most[at + j], sum[at + j]}, constant.value);
        }
      });
    };
    logarithm ? write(std::true_type{}) : write(std::false_type{});
  });
}

}  // namespace tp::segmented
