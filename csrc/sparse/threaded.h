// Shared by the CPU's production rungs. A vectorized loop checks the indices of a chunk, so the loops over its values
// need no checks. Long sums are divided into chunks of at most `chunk_length` terms, and the sums of the chunks are
// added in double.
#pragma once
#include <algorithm>
#include <vector>

#include "sparse/dense_rows.h"
#include "sparse/rows.h"

namespace tp::sparse {

constexpr int64_t chunk_length = 512, items_per_share = 1 << 14;
constexpr int64_t columns_per_strip = 64;

template <class T>
using wide_t = typename std::conditional<is_floating<T>, double, T>::type;

// Calls f(i) for i from 0 to n - 1, on all threads.
template <class F>
void parallel(Context& context, int64_t n, const F& f) {
  if (n == 1) return f(int64_t(0));
  context.parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

// Raises an error unless each of index[begin] to index[end - 1] is less than n, or is -1 if -1 marks padding.
template <bool padded = false, class I>
void check_indices(const I* index, int64_t begin, int64_t end, int64_t n, const char* op, const char* array) {
  using U = typename std::make_unsigned<I>::type;
  // i is in 0..last exactly if neither i nor last - i has its highest bit set.
  const U last = U(tp::min(n, int64_t(std::numeric_limits<I>::max()))) + U(padded) - 1;
  U bad = 0;
  for (int64_t i = begin; i < end; ++i) {
    const U at = U(index[i]) + U(padded);
    bad |= at | (last - at);
  }
  if (bad >> (8 * sizeof(U) - 1) == 0) return;
  for (int64_t i = begin; i < end; ++i) {
    if (!padded || index[i] != -1) usable(index[i], n, op, array, i);
  }
}

// The sum of entries begin to end - 1 times x, for k = 1; values[at(i)] is the value of entry i.
template <class T, class I, class At>
wide_t<T> dot_run(const T* values, const I* columns, const T* x, int64_t begin, int64_t end, At at) {
  using Acc = acc_t<T>;
  wide_t<T> total(0);
  do {
    const int64_t stop = tp::min(end, begin + chunk_length);
    Acc a(0), b(0), c(0), d(0);
    for (; begin + 4 <= stop; begin += 4) {
      a += Acc(values[at(begin)]) * Acc(x[columns[begin]]);
      b += Acc(values[at(begin + 1)]) * Acc(x[columns[begin + 1]]);
      c += Acc(values[at(begin + 2)]) * Acc(x[columns[begin + 2]]);
      d += Acc(values[at(begin + 3)]) * Acc(x[columns[begin + 3]]);
    }
    for (; begin < stop; ++begin) a += Acc(values[at(begin)]) * Acc(x[columns[begin]]);
    total += wide_t<T>((a + b) + (c + d));
  } while (begin < end);
  return total;
}

// to[c] += value * x[c].
template <class Acc, class T>
void add_scaled(Acc* to, Acc value, const T* x, int64_t n) {
#ifdef TP_WITH_AVX2
  if constexpr (is_floating<T>) {
    if (n >= 8 && has_avx2()) return dense_rows::add_scaled(to, value, x, n);
  }
#endif
  for (int64_t c = 0; c < n; ++c) to[c] += value * Acc(x[c]);
}

// Computes what a share of the entries adds to columns first to first + n - 1 of Y: sums [rows, n].
template <class Acc>
struct Strip {
  int64_t share, shares, first, n;
  Acc* sums;
};

// Adds up entries that come in any order: calls f(strip) for all strips of columns, each of which has its own sums.
// Strips are independent of each other. If there are few of them, the entries are divided into shares as well, and the
// sums of the shares are added in order. Every share clears and adds up all of Y, so more strips mean fewer shares.
template <class B, class F>
void scatter_strips(const B& b, int64_t entries, Context& context, F f) {
  using Acc = typename B::Acc;
  constexpr int64_t most_shares = 8;  // does not depend on the number of threads, so the result does not either
  const int64_t rows = b.a.rows, k = b.a.k, outputs = rows * k;
  const int64_t width = entries * k < items_per_share ? k : 16, strips = ceil_div(k, width);
  const bool few = entries < items_per_share || entries < 2 * rows;
  const int64_t shares = few ? 1 : tp::max(int64_t(1), most_shares / (strips * strips));
  Acc* sums = context.workspace<Acc>(outputs * shares);
  // The strips of a share follow each other in memory.
  parallel(context, shares * strips, [&](int64_t i) {
    const int64_t share = i / strips, first = i % strips * width, n = tp::min(width, k - first);
    Acc* const own = sums + share * outputs + first * rows;
    std::fill(own, own + rows * n, Acc(0));
    f(Strip<Acc>{share, shares, first, n, own});
  });
  const int64_t piece = tp::max(int64_t(1), items_per_share / k);
  parallel(context, ceil_div(rows, piece), [&](int64_t i) {
    for (int64_t row = i * piece; row < tp::min(rows, (i + 1) * piece); ++row) {
      for (int64_t first = 0; first < k; first += width) {
        const int64_t n = tp::min(width, k - first);
        Acc* const of_row = sums + first * rows + row * n;
        for (int64_t j = 1; j < shares; ++j) {
          for (int64_t c = 0; c < n; ++c) of_row[c] += of_row[j * outputs + c];
        }
        for (int64_t c = 0; c < n; ++c) b.store(row, first + c, of_row[c]);
      }
    }
  });
}

}  // namespace tp::sparse
