// Rows of a dense matrix as vectors on x86: weighted sums of rows, for products with several columns, and dot products
// of two rows, for sampled products.
#pragma once
#include "sparse/avx2.h"
#include "sparse/matrix.h"

#ifdef TP_WITH_AVX2
#define TP_UNROLL _Pragma("GCC unroll 8")  // so that arrays indexed by the loop variable stay in registers

namespace tp::sparse::dense_rows {

template <class A, int n>
struct VectorOf {
  typedef A type __attribute__((vector_size(n * sizeof(A))));
};
template <class A, int n>
using Vector = typename VectorOf<A, n>::type;

// Converts n values of a half type, from the low bits.
template <int n, class T>
TP_AVX2_INLINE Vector<float, n> widen(__m128i bits) {
  const __m256 all = std::is_same<T, half>::value
                         ? _mm256_cvtph_ps(bits)
                         : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  Vector<float, n> to;
  memcpy(&to, &all, sizeof(to));
  return to;
}

template <int n, class T>
TP_AVX2_INLINE Vector<acc_t<T>, n> load(const T* from) {
  if constexpr (std::is_same<T, acc_t<T>>::value) {
    Vector<T, n> to;
    memcpy(&to, from, sizeof(to));
    return to;
  } else {
    __m128i bits = _mm_setzero_si128();
    memcpy(&bits, from, n * sizeof(T));
    return widen<n, T>(bits);
  }
}

// to[c] = from[c], rounded to T.
template <class T>
TP_AVX2 void convert(const acc_t<T>* from, int64_t n, T* to) {
  if constexpr (std::is_same<T, half>::value) {
    for (; n >= 8; n -= 8, from += 8, to += 8) {
      const __m128i bits = _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT);
      memcpy(to, &bits, sizeof(bits));
    }
  }
  for (; n > 0; --n) *to++ = T(*from++);
}

template <class V, class A>
TP_AVX2_INLINE void store(A* to, V from) {
  memcpy(to, &from, sizeof(from));
}

// to[c] = the sum of value times x[column, c] over entries begin to end - 1, for `count` vectors of columns. All
// vectors except the last are contiguous from column `first` on; the last begins at column `last`.
template <int lanes, int count, class B, class Acc>
TP_AVX2_INLINE void sum_vectors(const B& b, int64_t begin, int64_t end, int64_t first, int64_t last, Acc* to) {
  using V = Vector<Acc, lanes>;
  constexpr int chains = tp::max(1, 4 / count);  // independent chains of additions, whose latency is four cycles
  const auto* const x = b.x;
  const auto* const values = b.values;
  const auto *const columns = b.col_idx, *const perm = b.a.perm != nullptr ? b.perm : nullptr;
  const int64_t k = b.a.k;
  V sum[chains][count] = {};
  const auto add = [&](V* to, int64_t i) TP_AVX2 __attribute__((always_inline)) {
    const Acc value = load<1>(values + (perm != nullptr ? int64_t(perm[i]) : i))[0];
    const auto* const row = x + int64_t(columns[i]) * k;
    TP_UNROLL for (int v = 0; v + 1 < count; ++v) to[v] += value * load<lanes>(row + first + v * lanes);
    to[count - 1] += value * load<lanes>(row + last);
  };
  int64_t i = begin;
  for (; i + chains <= end; i += chains) {
    TP_UNROLL for (int j = 0; j < chains; ++j) add(sum[j], i + j);
  }
  for (; i < end; ++i) add(sum[0], i);
  TP_UNROLL for (int v = 0; v < count; ++v) {
    TP_UNROLL for (int j = 1; j < chains; ++j) sum[0][v] += sum[j][v];
    store(to + (v + 1 < count ? first + v * lanes : last), sum[0][v]);
  }
}

// Computes the sums of all columns, of which there are at least `lanes`; the last vector may overlap the one before it.
template <int lanes, int most, class B, class Acc>
TP_AVX2_INLINE void sum_all(const B& b, int64_t begin, int64_t end, Acc* to) {
  const int64_t k = b.a.k, last = k - lanes;
  int64_t c = 0;
  if constexpr (most > 2) {
    for (; k - c > 7 * lanes; c += 8 * lanes) {
      sum_vectors<lanes, 8>(b, begin, end, c, tp::min(c + 7 * lanes, last), to);
    }
    if (k - c > 3 * lanes) {
      sum_vectors<lanes, 4>(b, begin, end, c, tp::min(c + 3 * lanes, last), to);
      c += 4 * lanes;
    }
  }
  if (k - c > lanes) {
    sum_vectors<lanes, 2>(b, begin, end, c, tp::min(c + lanes, last), to);
    c += 2 * lanes;
  }
  if (k > c) sum_vectors<lanes, 1>(b, begin, end, c, last, to);
}

// Computes to[c] for all c. The caller has checked the indices, and k is at least 2.
template <class B, class Acc>
TP_AVX2 void sum(const B& b, int64_t begin, int64_t end, Acc* to) {
  constexpr int lanes = 32 / sizeof(Acc);
  if (b.a.k >= lanes) {
    sum_all<lanes, 8>(b, begin, end, to);
  } else if (lanes > 4 && b.a.k >= 4) {
    sum_all<4, 2>(b, begin, end, to);
  } else {
    sum_all<2, 2>(b, begin, end, to);
  }
}

// Computes rows first to last - 1 of a product with two vectors of columns at most, whose columns have been checked;
// the entries of the first row begin at `entry`. A call for each row would take longer than a short row does.
template <class B>
TP_AVX2 void sum_narrow_rows(const B& b, int64_t first, int64_t last, int64_t entry) {
  constexpr int lanes = 32 / sizeof(typename B::Acc);
  constexpr int64_t ahead = 16;  // entries whose rows of x are on their way
  const int64_t k = b.a.k;
  const auto each = [&](auto width) TP_AVX2 __attribute__((always_inline)) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t end = tp::max(entry, b.pointer(row + 1));
      for (int64_t i = entry; i < tp::min(end, b.a.entries - ahead); ++i) {
        __builtin_prefetch(b.x + int64_t(b.col_idx[i + ahead]) * k);
      }
      sum_all<decltype(width)::value, 2>(b, entry, end, b.y + row * k);
      entry = end;
    }
  };
  if (k >= lanes) {
    each(std::integral_constant<int, lanes>{});
  } else if (lanes > 4 && k >= 4) {
    each(std::integral_constant<int, 4>{});
  } else {
    each(std::integral_constant<int, 2>{});
  }
}
// The most columns of such a product.
template <class Acc>
constexpr int64_t most_narrow = 2 * (32 / int64_t(sizeof(Acc)));

// to[c] += value * x[c].
template <class T>
TP_AVX2 void add_scaled(acc_t<T>* to, acc_t<T> value, const T* x, int64_t n) {
  constexpr int lanes = 32 / sizeof(value);
  for (; n >= lanes; n -= lanes, to += lanes, x += lanes) store(to, load<lanes>(to) + value * load<lanes>(x));
  for (; n > 0; --n) *to++ += value * load<1>(x++)[0];
}

// Returns the sum of the lanes.
template <class V>
TP_AVX2_INLINE auto total_of(V v) {
  constexpr int lanes = sizeof(v) / sizeof(v[0]);
  if constexpr (lanes == 1) {
    return v[0];
  } else {
    using A = std::decay_t<decltype(v[0])>;
    Vector<A, lanes / 2> half[2];
    memcpy(half, &v, sizeof(v));
    return total_of(half[0] + half[1]);
  }
}

// The first n values of a vector, n < lanes, and zeros. No other element is read.
template <int lanes, class T>
TP_AVX2_INLINE Vector<acc_t<T>, lanes> load_first(const T* from, int64_t n) {
  Vector<acc_t<T>, lanes> to;
  if constexpr (std::is_same<T, float>::value) {
    const __m256 all = _mm256_maskload_ps(
        from, _mm256_cmpgt_epi32(_mm256_set1_epi32(int(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
    memcpy(&to, &all, sizeof(to));
  } else if constexpr (std::is_same<T, double>::value) {
    const __m256d all =
        _mm256_maskload_pd(from, _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3)));
    memcpy(&to, &all, sizeof(to));
  } else {
    T values[lanes] = {};
    memcpy(values, from, size_t(n) * sizeof(T));
    to = load<lanes>(values);
  }
  return to;
}

// The totals of four vectors, each added as by total_of.
template <class V>
TP_AVX2_INLINE auto totals_of(const V (&v)[4]) {
  using A = std::decay_t<decltype(v[0][0])>;
  Vector<A, 4> row[4];
  TP_UNROLL for (int k = 0; k < 4; ++k) {
    if constexpr (sizeof(V) == sizeof(row[k])) {
      row[k] = v[k];
    } else {
      Vector<A, 4> half[2];
      memcpy(half, &v[k], sizeof(half));
      row[k] = half[0] + half[1];
    }
  }
  // The elements 0 and 1 of the four, plus 2 and 3, and then these two sums.
  const Vector<A, 4> first = __builtin_shufflevector(row[0], row[1], 0, 1, 4, 5) +
                             __builtin_shufflevector(row[0], row[1], 2, 3, 6, 7),
                     second = __builtin_shufflevector(row[2], row[3], 0, 1, 4, 5) +
                              __builtin_shufflevector(row[2], row[3], 2, 3, 6, 7);
  return __builtin_shufflevector(first, second, 0, 2, 4, 6) + __builtin_shufflevector(first, second, 1, 3, 5, 7);
}

// Sets to[k] to the sum of a[i] times b[k][i] for i from 0 to n - 1. Each sum has the same order, however many there
// are.
template <int count, class T>
TP_AVX2_INLINE void dots(const T* a, const T* const (&b)[count], int64_t n, acc_t<T> (&to)[count]) {
  using Acc = acc_t<T>;
  constexpr int lanes = 32 / sizeof(Acc);
  using V = Vector<Acc, lanes>;
  V sum[count] = {}, odd[count] = {};
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const V first = load<lanes>(a + i), second = load<lanes>(a + i + lanes);
    TP_UNROLL for (int k = 0; k < count; ++k) {
      sum[k] += first * load<lanes>(b[k] + i);
      odd[k] += second * load<lanes>(b[k] + i + lanes);
    }
  }
  if (i + lanes <= n) {
    const V first = load<lanes>(a + i);
    TP_UNROLL for (int k = 0; k < count; ++k) sum[k] += first * load<lanes>(b[k] + i);
    i += lanes;
  }
  if (i < n) {
    const V first = load_first<lanes>(a + i, n - i);
    TP_UNROLL for (int k = 0; k < count; ++k) odd[k] += first * load_first<lanes>(b[k] + i, n - i);
  }
  TP_UNROLL for (int k = 0; k < count; ++k) sum[k] += odd[k];
  if constexpr (count == 4) {
    const auto totals = totals_of(sum);
    TP_UNROLL for (int k = 0; k < count; ++k) to[k] = totals[k];
  } else {
    TP_UNROLL for (int k = 0; k < count; ++k) to[k] = total_of(sum[k]);
  }
}

}  // namespace tp::sparse::dense_rows

#undef TP_UNROLL
#endif
