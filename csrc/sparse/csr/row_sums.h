// Sums of rows of a CSR matrix times a vector, with vector instructions on x86.
//
// Long rows are summed one after another, four entries at a time. Short rows are summed in batches: first the entries
// of many rows are multiplied, four at a time regardless of row ends, into a buffer; then one vector of rows at a time
// is summed from the buffer. So rows of any length fill the vectors, and a branch is mispredicted only where a row's
// length differs from that of the previous row. Elements of x are loaded one by one and combined into vectors: if x is
// in the first-level cache, a gather instruction takes 1.3 to 1.7 times as long.
#pragma once
#include "sparse/csr/layout.h"
#include "sparse/threaded.h"

#ifdef TP_WITH_AVX2

namespace tp::sparse::row_sums {

using dense_rows::load;
using dense_rows::Vector;

// The most entries and rows that are multiplied before they are summed.
constexpr int64_t most_together = 1024, rows_together = 128;
constexpr int64_t ahead = 1024;   // prefetch distance in entries; each sum of rows interrupts the reading of the arrays
constexpr int64_t long_row = 10;  // entries per row, on average over the rows that are summed together

template <class Acc>
constexpr int lanes = 32 / sizeof(Acc);

template <class T>
TP_AVX2_INLINE Vector<acc_t<T>, 4> elements(const T* x, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  if constexpr (std::is_same<T, acc_t<T>>::value) {
    return Vector<T, 4>{x[a], x[b], x[c], x[d]};
  } else {
    const __m128i two = _mm_insert_epi16(_mm_cvtsi32_si128(x[a].bits), x[b].bits, 1);
    return dense_rows::widen<4, T>(_mm_insert_epi16(_mm_insert_epi16(two, x[c].bits, 2), x[d].bits, 3));
  }
}
template <class T>
TP_AVX2_INLINE auto gather(const T* x, const int64_t* column) {
  return elements(x, column[0], column[1], column[2], column[3]);
}
// Loads two columns at a time, because loads limit the speed.
template <class T>
TP_AVX2_INLINE auto gather(const T* x, const int32_t* column) {
  uint64_t low, high;
  memcpy(&low, column, 8);
  memcpy(&high, column + 2, 8);
  return elements(x, uint32_t(low), low >> 32, uint32_t(high), high >> 32);
}

// The first n lanes of a vector, and 0 in the others.
template <class V>
TP_AVX2_INLINE V first_lanes(V v, int64_t n) {
  constexpr int count = sizeof(v) / sizeof(v[0]);
  using Bits = typename std::conditional<sizeof(v[0]) == 4, int32_t, int64_t>::type;
  struct Masks {
    Bits bits[2 * count] = {};
    constexpr Masks() {
      for (int i = 0; i < count; ++i) bits[i] = -1;
    }
  };
  alignas(64) static constexpr Masks masks;
  Vector<Bits, count> mask;
  memcpy(&mask, masks.bits + count - n, sizeof(mask));
  return V(Vector<Bits, count>(v) & mask);
}

// Raises an error unless the columns of entries begin to end - 1 are all inside the matrix.
template <class B>
TP_AVX2_INLINE void check_columns(const B& b, int64_t begin, int64_t end) {
  using U = typename std::make_unsigned<typename B::Position>::type;
  const auto* const columns = b.col_idx;
  U most = 0;
  for (int64_t i = begin; i < end; ++i) most = tp::max(most, U(columns[i]));
  if (most >= uint64_t(b.a.cols)) check_indices(&b.col_idx[0], begin, end, b.a.cols, b.a.op, "col_idx");
}

// Multiplies entries begin to end - 1, whose columns have been checked.
template <class B>
TP_AVX2_INLINE void multiply(const B& b, int64_t begin, int64_t end, typename B::Acc* products) {
  using Acc = typename B::Acc;
  const auto *const values = b.values + begin, *const x = b.x;
  const auto* const columns = b.col_idx + begin;
  const int64_t n = end - begin;
  const auto four = [=](int64_t i) TP_AVX2
      __attribute__((always_inline)) { dense_rows::store(products + i, load<4>(values + i) * gather(x, columns + i)); };
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __builtin_prefetch(columns + i + ahead);
    __builtin_prefetch(values + i + ahead);
    four(i), four(i + 4), four(i + 8), four(i + 12);
  }
  for (; i + 4 <= n; i += 4) four(i);
  for (; i < n; ++i) products[i] = Acc(values[i]) * Acc(x[columns[i]]);
}

// A vector whose lanes add up to the sum of n products. There must be room for a whole vector after the products.
template <class Acc>
TP_AVX2_INLINE Vector<Acc, lanes<Acc>> lanes_of(const Acc* products, int64_t n) {
  const int64_t whole = n & -lanes<Acc>;
  auto sum = first_lanes(load<lanes<Acc>>(products + whole), n - whole);
  for (int64_t i = 0; i < whole; i += lanes<Acc>) sum += load<lanes<Acc>>(products + i);
  return sum;
}

// Lane i is the sum of the lower half of vector i, and lane 4 + i that of its upper half.
TP_AVX2_INLINE __m256 halves(const __m256* v) {
  const __m256 low = _mm256_add_ps(_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));
  const __m256 high = _mm256_add_ps(_mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3]));
  return _mm256_add_ps(_mm256_shuffle_ps(low, high, 0x44), _mm256_shuffle_ps(low, high, 0xee));
}
// Lane r is the sum of vector r.
TP_AVX2_INLINE __m256 totals(const __m256 (&v)[8]) {
  const __m256 low = halves(v), high = halves(v + 4);
  return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}
TP_AVX2_INLINE __m256d totals(const __m256d (&v)[4]) {
  const __m256d low = _mm256_hadd_pd(v[0], v[1]), high = _mm256_hadd_pd(v[2], v[3]);
  return _mm256_add_pd(_mm256_permute2f128_pd(low, high, 0x20), _mm256_permute2f128_pd(low, high, 0x31));
}

// sums[r] = the sum of products at[r] to at[r + 1] - 1, for one vector of rows.
template <class Acc>
TP_AVX2_INLINE void sum_some(const Acc* products, const int32_t* at, Acc* sums) {
  constexpr int rows = lanes<Acc>;
  if (at[0] == at[rows]) {  // the common case in a graph with few edges
    dense_rows::store(sums, Vector<Acc, rows>{});
    return;
  }
  Vector<Acc, rows> of_row[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) of_row[r] = lanes_of(products + at[r], tp::max(0, at[r + 1] - at[r]));
  dense_rows::store(sums, totals(of_row));
}

// Computes y for rows first to last - 1. Their entries, i to end - 1, have been checked. Vectors may extend beyond the
// end of a row, among checked entries; the lanes beyond it are cleared.
template <class B>
TP_AVX2_INLINE void sum_long_rows(const B& b, int64_t first, int64_t last, int64_t i, int64_t end) {
  using T = typename B::Value;
  using Acc = typename B::Acc;
  const auto *const values = b.values, *const x = b.x;
  const auto *const columns = b.col_idx, *const ptrs = b.ptrs;
  const auto four = [=](int64_t i) TP_AVX2
      __attribute__((always_inline)) { return load<4>(values + i) * gather(x, columns + i); };
  const bool alone = b.alone();
  for (int64_t row = first; row < last; ++row) {
    const int64_t stop = tp::max(i, tp::min(int64_t(ptrs[row + 1]), end));
    Vector<Acc, 4> even = {}, odd = {};
    for (; i + 8 <= stop; i += 8) even += four(i), odd += four(i + 4);
    if (i + 4 <= stop) even += four(i), i += 4;
    if (i + 4 <= end) {
      odd += first_lanes(four(i), stop - i);
    } else {
      for (; i < stop; ++i) odd[0] += Acc(values[i]) * Acc(x[columns[i]]);
    }
    i = stop;
    const Acc sum = dense_rows::total_of(even + odd);
    if (alone) {
      b.y[row] = T(sum);
    } else {
      b.store(row, 0, sum);
    }
  }
}

// The sum of a run of any length, in chunks. A chunk is divided into as many parts as a vector has lanes, which are
// summed as if they were rows.
template <class B>
TP_AVX2 double sum_run(const B& b, int64_t begin, int64_t end) {
  using Acc = typename B::Acc;
  constexpr int rows = lanes<Acc>;
  Acc products[chunk_length + rows], sums[rows];
  double total = 0;
  for (int64_t stop; begin < end; begin = stop) {
    stop = tp::min(end, begin + chunk_length);
    check_columns(b, begin, stop);
    multiply(b, begin, stop, products);
    int32_t at[rows + 1];
    for (int64_t i = 0; i <= rows; ++i) at[i] = int32_t((stop - begin) * i / rows);
    sum_some(products, at, sums);
    for (const Acc sum : sums) total += double(sum);
  }
  return total;
}

// Computes y for rows first to last - 1, a batch at a time: as many rows as are together no longer than most_together.
template <class B>
TP_AVX2 void sum_rows(const B& b, int64_t first, int64_t last) {
  using T = typename B::Value;
  using Acc = typename B::Acc;
  using I = typename B::Position;
  constexpr int some = lanes<Acc>;
  Acc products[most_together + some], sums[some];
  int32_t at[rows_together + 1];
  const I* const ptrs = b.ptrs;
  T* const y = b.y;
  const bool alone = b.alone();
  for (int64_t row = first, next; row < last; row = next) {
    next = tp::min(row + rows_together, last);
    const int64_t begin = b.pointer(row);
    const auto end_of = [&](int64_t stop) { return tp::max(begin, b.pointer(stop)); };
    int64_t end = end_of(next), rows = next - row;
    for (; rows > 1 && end - begin > most_together; rows = next - row) {
      next = row + rows / 2;
      end = end_of(next);
    }
    if (end - begin > most_together) {
      b.store(row, 0, Acc(sum_run(b, begin, end)));
      continue;
    }
    check_columns(b, begin, end);
    if (end - begin >= long_row * rows) {
      sum_long_rows(b, row, next, begin, end);
      continue;
    }
    multiply(b, begin, end, products);
    for (int64_t i = 0; i <= rows; ++i) at[i] = int32_t(tp::max(I(begin), tp::min(ptrs[row + i], I(end))) - I(begin));
    for (int64_t i = rows; i % some != 0; ++i) at[i + 1] = at[i];
    for (int64_t i = 0; i < rows; i += some) {
      if constexpr (std::is_same<T, Acc>::value) {
        if (alone && i + some <= rows) {
          sum_some(products, at + i, y + row + i);
          continue;
        }
      }
      sum_some(products, at + i, sums);
      const int64_t n = tp::min(int64_t(some), rows - i);
      if (alone) {
        dense_rows::convert(sums, n, y + row + i);
      } else {
        for (int64_t r = 0; r < n; ++r) b.store(row + i + r, 0, sums[r]);
      }
    }
  }
}

}  // namespace tp::sparse::row_sums

#endif
