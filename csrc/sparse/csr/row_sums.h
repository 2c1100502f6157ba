// Sums of rows of a CSR matrix times a vector, with vector instructions on x86.
//
// Long rows are summed one after another, four entries at a time. Short rows are summed in batches: first the entries
// of many rows are multiplied, four at a time regardless of row ends, into a buffer; then one vector of rows at a time
// is summed from the buffer. So rows of any length fill the vectors, and a branch is mispredicted only where a row's
// length differs from that of the previous row.
#pragma once
#include "sparse/csr/gather.h"

#ifdef TP_WITH_AVX2

namespace tp::sparse::row_sums {

// The most entries and rows that are multiplied before they are summed.
constexpr int64_t most_together = 1024, rows_together = 128;
constexpr int64_t cache_bytes = 1 << 23;  // values and columns that are in some cache from one product to the next
constexpr int64_t long_row = 10;          // entries per row, on average over the rows that are summed together

template <class Acc>
constexpr int lanes = 32 / sizeof(Acc);

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

// Multiplies entries begin to end - 1.
template <class B, class Gather>
TP_AVX2_INLINE void multiply(const B& b, int64_t begin, int64_t end, Gather gather, typename B::Acc* products) {
  const auto* const values = b.values + begin;
  const auto* const columns = b.col_idx + begin;
  const int64_t n = end - begin;
  gather.open(b, begin, end);
  const auto four = [&](int64_t i) TP_AVX2 __attribute__((always_inline)) {
    dense_rows::store(products + i, load<4>(values + i) * gather.four(columns + i));
  };
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    gather.prefetch(columns + i, values + i);
    four(i), four(i + 4);
  }
  if (i + 4 <= n) four(i), i += 4;
  for (; i < n; ++i) products[i] = load<1>(values + i)[0] * gather.one(columns + i);
  gather.close(b, begin, end);
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

// Tells whether the columns of entries begin to end - 1 are consecutive, as far as the first and the last one tell. If
// so, four entries and four columns beyond them may be read, too.
template <class B>
TP_AVX2_INLINE bool may_be_consecutive(const B& b, int64_t begin, int64_t end) {
  constexpr int64_t fewest = 8;
  const int64_t n = end - begin;
  if (n < fewest || end + 4 > b.a.entries) return false;
  const int64_t first = b.col_idx[begin], last = b.col_idx[end - 1];
  return uint64_t(last) - uint64_t(first) == uint64_t(n - 1) && first >= 0 && last < b.a.cols - 4;
}

// The sum of entries begin to end - 1, if may_be_consecutive is right about them; otherwise `consecutive` becomes
// false.
template <class B>
TP_AVX2_INLINE typename B::Acc sum_consecutive(const B& b, int64_t begin, int64_t end, bool& consecutive) {
  using Acc = typename B::Acc;
  using U = typename std::make_unsigned<typename B::Position>::type;
  using V = Vector<U, 4>;
  const auto* const columns = b.col_idx;
  const auto *const values = b.values, *const x = b.x + (int64_t(columns[begin]) - begin);
  V expected = V{0, 1, 2, 3} + U(columns[begin]), different = {};
  const auto compare = [&](int64_t i) TP_AVX2 __attribute__((always_inline)) {
    V c;
    memcpy(&c, columns + i, sizeof(c));
    c ^= expected;
    expected += 4;
    return c;
  };
  const auto four = [=](int64_t i) TP_AVX2
      __attribute__((always_inline)) { return load<4>(values + i) * load<4>(x + i); };
  Vector<Acc, 4> even = {}, odd = {};
  int64_t i = begin;
  for (; i + 8 <= end; i += 8) {
    different |= compare(i), even += four(i);
    different |= compare(i + 4), odd += four(i + 4);
  }
  if (i + 4 <= end) different |= compare(i), even += four(i), i += 4;
  different |= first_lanes(compare(i), end - i);
  odd += first_lanes(four(i), end - i);
  consecutive = ((different[0] | different[1]) | (different[2] | different[3])) == 0;
  return dense_rows::total_of(even + odd);
}

// The sum of entries i to stop - 1. Vectors may extend beyond them, up to `limit`; the lanes beyond them are cleared.
template <class B, class Gather>
TP_AVX2_INLINE typename B::Acc sum_row(const B& b, int64_t i, int64_t stop, int64_t limit, Gather& gather) {
  using Acc = typename B::Acc;
  const auto* const values = b.values;
  const auto* const columns = b.col_idx;
  if constexpr (Gather::clamps) {
    if (may_be_consecutive(b, i, stop)) {
      bool consecutive;
      const Acc sum = sum_consecutive(b, i, stop, consecutive);
      if (consecutive) return sum;
    }
  }
  const auto four = [&](int64_t i) TP_AVX2
      __attribute__((always_inline)) { return load<4>(values + i) * gather.four(columns + i); };
  Vector<Acc, 4> even = {}, odd = {};
  for (; i + 8 <= stop; i += 8) {
    gather.prefetch(columns + i, values + i);
    even += four(i), odd += four(i + 4);
  }
  if (i + 4 <= stop) even += four(i), i += 4;
  if (i + 4 <= limit) {
    odd += first_lanes(four(i), stop - i);
  } else {
    for (; i < stop; ++i) odd[0] += load<1>(values + i)[0] * gather.one(columns + i);
  }
  return dense_rows::total_of(even + odd);
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
    multiply(b, begin, stop, Clamp<B>(b), products);
    int32_t at[rows + 1];
    for (int64_t i = 0; i <= rows; ++i) at[i] = int32_t((stop - begin) * i / rows);
    sum_some(products, at, sums);
    for (const Acc sum : sums) total += double(sum);
  }
  return total;
}

// Computes y for rows first to last - 1, which are entries begin to end - 1. `gather` is a copy, so that it stays in
// registers.
template <class B, class Gather>
TP_AVX2_INLINE void sum_long_rows(const B& b, int64_t first, int64_t last, int64_t begin, int64_t end, Gather gather) {
  using T = typename B::Value;
  const auto* const ptrs = b.ptrs;
  T* const y = b.alone() ? b.y : nullptr;
  const int64_t limit = gather.open(b, begin, end);
  for (int64_t row = first, i = begin, stop; row < last; ++row, i = stop) {
    stop = tp::max(i, tp::min(int64_t(ptrs[row + 1]), end));
    const auto sum = sum_row(b, i, stop, limit, gather);
    if (y != nullptr) {
      y[row] = T(sum);
    } else {
      b.store(row, 0, sum);
    }
  }
  gather.close(b, begin, end);
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
  const bool alone = b.alone(), in_cache = b.a.entries * int64_t(sizeof(T) + sizeof(I)) <= cache_bytes;
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
    if (end - begin >= long_row * rows) {
      if (in_cache && !may_be_consecutive(b, begin, end_of(row + 1))) {
        sum_long_rows(b, row, next, begin, end, Check<B>(b));
      } else {
        sum_long_rows(b, row, next, begin, end, Clamp<B>(b));
      }
      continue;
    }
    if (in_cache) {
      multiply(b, begin, end, Check<B>(b), products);
    } else {
      multiply(b, begin, end, Clamp<B>(b), products);
    }
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
