// Elements of x for entries of a CSR matrix, on x86. Columns are checked in one of two ways:
// - Check checks the columns of a batch of entries before they are used. In the cache, this takes the
//   least instructions.
// - Clamp replaces a column outside the matrix by the last one, and remembers it. So there is no pass that waits for
//   columns from memory while nothing else is done. It also prefetches columns and values, because random accesses to x
//   keep the processor from prefetching by itself.
// Elements of x are loaded one by one and combined into vectors: if x is in the first-level cache, a gather instruction
// takes 1.3 to 2 times as long.
#pragma once
#include "sparse/csr/layout.h"
#include "sparse/threaded.h"

#ifdef TP_WITH_AVX2

namespace tp::sparse::row_sums {

using dense_rows::load;
using dense_rows::Vector;

template <class T>
TP_AVX2_INLINE Vector<acc_t<T>, 4> elements(const T* x, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  if constexpr (std::is_same<T, acc_t<T>>::value) {
    return Vector<T, 4>{x[a], x[b], x[c], x[d]};
  } else {
    const __m128i two = _mm_insert_epi16(_mm_cvtsi32_si128(x[a].bits), x[b].bits, 1);
    return dense_rows::widen<4, T>(_mm_insert_epi16(_mm_insert_epi16(two, x[c].bits, 2), x[d].bits, 3));
  }
}

// The last column as an unsigned number. Columns that are greater are outside the matrix, as are negative ones, which
// are large as unsigned numbers. There must be columns.
template <class B>
TP_AVX2_INLINE auto last_column(const B& b) {
  using I = typename B::Position;
  return typename std::make_unsigned<I>::type(tp::min(b.a.cols - 1, int64_t(std::numeric_limits<I>::max())));
}

// Raises an error unless the columns of entries begin to end - 1 are all inside the matrix.
template <class B>
TP_AVX2_INLINE void require_columns(const B& b, int64_t begin, int64_t end) {
  using U = decltype(last_column(b));
  U most = 0;
  for (int64_t i = begin; i < end; ++i) most = tp::max(most, U(b.col_idx[i]));
  if (b.a.cols > 0 && most <= last_column(b)) return;
  check_indices(&b.col_idx[0], begin, end, b.a.cols, b.a.op, "col_idx");
}

// Both have these functions: `open` comes before a batch of entries, begin to end - 1, and returns the end of the
// entries that may be read; `close` comes after it. `four` and `one` return elements of x. `prefetch` is called for
// every eighth entry.
template <class B>
class Check {
  using T = typename B::Value;
  using I = typename B::Position;

 public:
  static constexpr bool clamps = false;

  TP_AVX2_INLINE explicit Check(const B& b) : x_(b.x) {}
  TP_AVX2_INLINE int64_t open(const B& b, int64_t begin, int64_t end) {
    require_columns(b, begin, end);
    return end;
  }
  TP_AVX2_INLINE void prefetch(const I*, const T*) {}
  TP_AVX2_INLINE Vector<acc_t<T>, 4> four(const I* columns) {
    if constexpr (sizeof(I) == 8) return elements(x_, columns[0], columns[1], columns[2], columns[3]);
    uint64_t low, high;  // two columns at a time, because loads limit the speed
    memcpy(&low, columns, 8);
    memcpy(&high, columns + 2, 8);
    return elements(x_, uint32_t(low), low >> 32, uint32_t(high), high >> 32);
  }
  TP_AVX2_INLINE acc_t<T> one(const I* column) { return acc_t<T>(x_[*column]); }
  TP_AVX2_INLINE void close(const B&, int64_t, int64_t) {}

 private:
  const T* x_;
};

template <class B>
class Clamp {
  using T = typename B::Value;
  using I = typename B::Position;
  using U = typename std::make_unsigned<I>::type;
  using V = Vector<U, 4>;
  static constexpr int64_t ahead = 512;  // in entries

 public:
  static constexpr bool clamps = true;

  TP_AVX2_INLINE explicit Clamp(const B& b) : x_(b.x), last_(V{} + last_column(b)), most_{} {
    if (b.a.cols == 0) require_columns(b, 0, b.a.entries);  // raises an error: there is nothing to read
  }
  TP_AVX2_INLINE int64_t open(const B& b, int64_t, int64_t) { return b.a.entries; }
  TP_AVX2_INLINE void prefetch(const I* columns, const T* values) {
    __builtin_prefetch(columns + ahead);
    __builtin_prefetch(values + ahead);
  }
  TP_AVX2_INLINE Vector<acc_t<T>, 4> four(const I* columns) {
    V c;
    memcpy(&c, columns, sizeof(c));
    most_ = most_ > c ? most_ : c;
    c = c < last_ ? c : last_;
    if constexpr (sizeof(I) == 8) return elements(x_, c[0], c[1], c[2], c[3]);
    const auto two = Vector<uint64_t, sizeof(V) / 8>(c);  // fewer instructions than one element at a time
    return elements(x_, uint32_t(two[0]), two[0] >> 32, uint32_t(two[1]), two[1] >> 32);
  }
  TP_AVX2_INLINE acc_t<T> one(const I* column) {
    most_[0] = tp::max(most_[0], U(*column));
    return acc_t<T>(x_[tp::min(U(*column), last_[0])]);
  }
  TP_AVX2_INLINE void close(const B& b, int64_t begin, int64_t end) {
    const U most = tp::max(tp::max(most_[0], most_[1]), tp::max(most_[2], most_[3]));
    if (most > last_[0]) require_columns(b, begin, tp::min(end + 4, b.a.entries));  // vectors may extend beyond the end
  }

 private:
  const T* x_;
  V last_, most_;
};

}  // namespace tp::sparse::row_sums

#endif
