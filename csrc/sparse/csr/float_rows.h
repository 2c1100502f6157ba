// Sums of rows of float32 in vectors, for x86.
//
// Long rows are summed one after another, four entries at a time. The entries of short rows are multiplied first, four
// at a time wherever rows end, into a buffer; then the rows are summed from there, eight at a time. So rows of any
// length fill the vectors, and nothing branches at a row's end but where it has eight entries more or fewer than the row
// before. x is loaded element by element and put together: a gather instruction takes 1.3 to 1.7 times as long where x
// is in the first cache.
#pragma once
#include "sparse/threaded.h"

#ifdef TP_WITH_AVX2

namespace tp::sparse::float_rows {

constexpr int64_t most_products = 1024, most_checked = 2048, rows_together = 128;
constexpr int64_t ahead = 1024;  // entries; asked for early, since each sum of rows stops the reading of the arrays
constexpr int64_t long_row = 10;  // entries, in the mean of the rows that are taken together

TP_AVX2_INLINE __m128 gather(const float* x, const int64_t* column) {
  return _mm_setr_ps(x[column[0]], x[column[1]], x[column[2]], x[column[3]]);
}
// Columns come two to a load: loads are what there are most of.
TP_AVX2_INLINE __m128 gather(const float* x, const int32_t* column) {
  uint64_t low, high;
  __builtin_memcpy(&low, column, 8);
  __builtin_memcpy(&high, column + 2, 8);
  return _mm_setr_ps(x[uint32_t(low)], x[low >> 32], x[uint32_t(high)], x[high >> 32]);
}

// Raises unless the columns of entries begin to end - 1 are all inside.
template <class B>
TP_AVX2_INLINE void check_columns(const B& b, int64_t begin, int64_t end) {
  using U = typename std::make_unsigned<typename B::Position>::type;
  const auto* const columns = b.col_idx;
  U most = 0;
  for (int64_t i = begin; i < end; ++i) most = tp::max(most, U(columns[i]));
  if (most >= uint64_t(b.a.cols)) check_indices(&b.col_idx[0], begin, end, b.a.cols, b.a.op, "col_idx");
}

// The products of entries begin to end - 1, whose columns have been checked.
template <class B>
TP_AVX2_INLINE void multiply(const B& b, int64_t begin, int64_t end, float* products) {
  const float *const values = b.values + begin, *const x = b.x;
  const auto* const columns = b.col_idx + begin;
  const int64_t n = end - begin;
  const auto four = [=](int64_t i) TP_AVX2 __attribute__((always_inline)) {
    _mm_storeu_ps(products + i, _mm_mul_ps(_mm_loadu_ps(values + i), gather(x, columns + i)));
  };
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __builtin_prefetch(columns + i + ahead);
    __builtin_prefetch(values + i + ahead);
    four(i), four(i + 4), four(i + 8), four(i + 12);
  }
  for (; i + 4 <= n; i += 4) four(i);
  for (; i < n; ++i) products[i] = values[i] * x[columns[i]];
}

// The sum of n products is that of the lanes. Behind the products there is room for a vector.
TP_AVX2_INLINE __m256 lanes_of(const float* products, int64_t n) {
  alignas(64) static const int32_t mask[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
  const int64_t whole = n & -8;
  const __m256 last = _mm256_loadu_ps(reinterpret_cast<const float*>(mask + 8 - (n - whole)));
  __m256 sum = _mm256_and_ps(_mm256_loadu_ps(products + whole), last);
  for (int64_t i = 0; i < whole; i += 8) sum = _mm256_add_ps(sum, _mm256_loadu_ps(products + i));
  return sum;
}

// Lane i: the sum of the lower half of vector i, and lane 4 + i: of its upper half.
TP_AVX2_INLINE __m256 halves(const __m256* v) {
  const __m256 low = _mm256_add_ps(_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));
  const __m256 high = _mm256_add_ps(_mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3]));
  return _mm256_add_ps(_mm256_shuffle_ps(low, high, 0x44), _mm256_shuffle_ps(low, high, 0xee));
}

// Lane r: the sum of products at[r] to at[r + 1] - 1.
TP_AVX2_INLINE __m256 eight_sums(const float* products, const int32_t* at) {
  if (at[0] == at[8]) return _mm256_setzero_ps();  // nothing, as in most places of a graph with few edges
  __m256 lanes[8];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) lanes[r] = lanes_of(products + at[r], tp::max(0, at[r + 1] - at[r]));
  const __m256 low = halves(lanes), high = halves(lanes + 4);
  return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}

// y of rows first to last - 1, whose entries, i to end - 1, have been checked. What lies beyond the end of a row is
// multiplied too, where it is one of those, and left out.
template <class B>
TP_AVX2_INLINE void sum_long_rows(const B& b, int64_t first, int64_t last, int64_t i, int64_t end) {
  alignas(32) static const int32_t mask[8] = {-1, -1, -1, -1};
  const float *const values = b.values, *const x = b.x;
  const auto *const columns = b.col_idx, *const ptrs = b.ptrs;
  const auto four = [=](int64_t i, __m128 sum) TP_AVX2 __attribute__((always_inline)) {
    return _mm_fmadd_ps(_mm_loadu_ps(values + i), gather(x, columns + i), sum);
  };
  for (int64_t row = first; row < last; ++row) {
    const int64_t stop = tp::max(i, tp::min(int64_t(ptrs[row + 1]), end));
    __m128 even = _mm_setzero_ps(), odd = even;
    for (; i + 8 <= stop; i += 8) even = four(i, even), odd = four(i + 4, odd);
    if (i + 4 <= stop) even = four(i, even), i += 4;
    if (i + 4 <= end) {
      const __m128 rest = _mm_loadu_ps(reinterpret_cast<const float*>(mask + 4 - (stop - i)));
      odd = _mm_add_ps(odd, _mm_and_ps(four(i, _mm_setzero_ps()), rest));
    } else {
      for (; i < stop; ++i) odd = _mm_add_ss(odd, _mm_set_ss(values[i] * x[columns[i]]));
    }
    i = stop;
    const __m128 sum = _mm_add_ps(even, odd), two = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    b.y[row] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
}

// Of a run of any length, by stretches, each of which is taken for eight rows.
template <class B>
TP_AVX2 double sum_run(const B& b, int64_t begin, int64_t end) {
  float products[stretch + 8], sums[8];
  double total = 0;
  for (int64_t stop; begin < end; begin = stop) {
    stop = tp::min(end, begin + stretch);
    check_columns(b, begin, stop);
    multiply(b, begin, stop, products);
    int32_t at[9];
    for (int64_t i = 0; i <= 8; ++i) at[i] = int32_t((stop - begin) * i / 8);
    _mm256_storeu_ps(sums, eight_sums(products, at));
    for (const float sum : sums) total += double(sum);
  }
  return total;
}

// y of rows first to last - 1.
template <class B>
TP_AVX2 void sum_rows(const B& b, int64_t first, int64_t last) {
  using I = typename B::Position;
  float products[most_products + 8], sums[8];
  int32_t at[rows_together + 1];
  const I* const ptrs = b.ptrs;
  float* const y = b.y;
  for (int64_t row = first, next; row < last; row = next) {
    next = tp::min(row + rows_together, last);
    const int64_t begin = b.pointer(row);
    const auto end_of = [&](int64_t stop) { return tp::max(begin, b.pointer(stop)); };
    int64_t end = end_of(next), rows = next - row;
    const auto most = [&] { return end - begin < long_row * rows ? most_products : most_checked; };
    for (; rows > 1 && end - begin > most(); rows = next - row) {
      next = row + rows / 2;
      end = end_of(next);
    }
    if (end - begin > most()) {
      y[row] = float(sum_run(b, begin, end));
      continue;
    }
    check_columns(b, begin, end);
    if (end - begin >= long_row * rows) {
      sum_long_rows(b, row, next, begin, end);
      continue;
    }
    multiply(b, begin, end, products);
    for (int64_t i = 0; i <= rows; ++i) at[i] = int32_t(tp::max(I(begin), tp::min(ptrs[row + i], I(end))) - I(begin));
    for (int64_t i = rows; i % 8 != 0; ++i) at[i + 1] = at[i];
    for (int64_t i = 0; i < rows; i += 8) {
      const bool eight = i + 8 <= rows;
      _mm256_storeu_ps(eight ? y + row + i : sums, eight_sums(products, at + i));
      if (!eight) std::copy(sums, sums + (rows - i), y + row + i);
    }
  }
}

}  // namespace tp::sparse::float_rows

#endif
