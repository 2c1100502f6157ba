// What the production rungs of the CPU share. Indices are looked at a stretch at a time, by a loop that becomes
// vectors, so that the loops over values need not. Long sums are taken in stretches of at most `stretch` terms, and
// those in double.
#pragma once
#include <algorithm>
#include <vector>

#include "sparse/rows.h"

namespace tp::sparse {

constexpr int64_t stretch = 512, items_a_share = 1 << 14;
constexpr int64_t columns_a_strip = 64;
constexpr int64_t most_shares = 8;  // of sums, whatever the threads: the result does not depend on them

template <class T>
using wide_t = typename std::conditional<is_floating<T>, double, T>::type;

// f(i) for i from 0 to n - 1, on all threads.
template <class F>
void parallel(Context& context, int64_t n, const F& f) {
  if (n == 1) return f(int64_t(0));
  context.parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

// Raises unless index[begin] to index[end - 1] may all index n things, or are -1 where that is padding.
template <bool padded = false, class I>
void check_indices(const I* index, int64_t begin, int64_t end, int64_t n, const char* op, const char* array) {
  using U = typename std::make_unsigned<I>::type;
  // i is in 0..last if neither i nor last - i has its highest bit set.
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

// The products of entries begin to end - 1 with x, for k = 1; `at` says where the value of an entry stands.
template <class T, class I, class At>
wide_t<T> dot_run(const T* values, const I* columns, const T* x, int64_t begin, int64_t end, At at) {
  using Acc = acc_t<T>;
  wide_t<T> total(0);
  do {
    const int64_t stop = tp::min(end, begin + stretch);
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
  for (int64_t c = 0; c < n; ++c) to[c] += value * Acc(x[c]);
}

// Sums that several shares add to in any place: each has its own, and they are added up in order. f(share, sums).
template <class B, class F>
void scatter_shares(const B& b, int64_t entries, Context& context, F f) {
  using Acc = typename B::Acc;
  const int64_t outputs = b.a.rows * b.a.k;
  const int64_t shares = entries < items_a_share || entries < 2 * b.a.rows ? 1 : most_shares;
  Acc* sums = context.workspace<Acc>(outputs * shares);
  parallel(context, shares, [&](int64_t i) {
    std::fill(sums + i * outputs, sums + (i + 1) * outputs, Acc(0));
    f(i, shares, sums + i * outputs);
  });
  parallel(context, ceil_div(b.a.rows, items_a_share), [&](int64_t piece) {
    const int64_t end = tp::min(b.a.rows, (piece + 1) * items_a_share);
    for (int64_t row = piece * items_a_share; row < end; ++row) {
      for (int64_t c = 0; c < b.a.k; ++c) {
        Acc sum = sums[row * b.a.k + c];
        for (int64_t i = 1; i < shares; ++i) sum += sums[i * outputs + row * b.a.k + c];
        b.store(row, c, sum);
      }
    }
  });
}

}  // namespace tp::sparse
