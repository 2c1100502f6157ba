// Bitonic sorts of many short rows at once, on the host: each lane of a vector has its own row, so comparisons never
// cross lanes.
//
// Keys with equal bits cannot be distinguished, so a sort of keys alone need not be stable. A merge of two sorted
// halves compares key i with key n - 1 - i and then, in either half, keys at half that distance, at a quarter, and so
// on (PMPP's exercise on bitonic sort). One pass over the keys takes as many of these steps as the registers can hold.
// Rows are sorted as if they were filled up to a power of two with greatest keys: these would never move, so
// comparisons with them are left out.
#pragma once
#include <type_traits>
#include <utility>

#include "core/macros.h"

#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define TP_WITH_ROW_NETWORKS
#endif
#endif

#ifdef TP_WITH_ROW_NETWORKS

namespace tp::sort::host {

// W is the image of a key, but signed, because the processor's vector instructions compare signed words.
template <class W>
struct RowNetwork {
  using S = std::make_signed_t<W>;
  static constexpr int lanes = 32 / int(sizeof(W));
  typedef S V __attribute__((vector_size(32), aligned(sizeof(S)), may_alias));
  static constexpr int block = 8;  // keys of a lane in registers
  static_assert(sizeof(W) > 1, "a counting sort of bytes is faster");

  static void exchange(V& a, V& b) {
    const V low = a < b ? a : b, high = a < b ? b : a;
    a = low;
    b = high;
  }
  // Sorts x[0 .. n); n is a multiple of `block`.
  static void sort(V* x, int64_t n) {
    for (int64_t i = 0; i < n; i += block) sort_block(x + i);
    for (int64_t half = block; half < n; half *= 2) {
      int64_t i = 0;
      for (; i + 2 * half <= n; i += 2 * half) merge(x + i, 2 * half);
      if (i + half < n) merge_part(x + i, 2 * half, n - i);
    }
  }

  // Transposes x[0 .. lanes): exchanges lanes and vectors.
  static void transpose(V* to) {
    V x[lanes];
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) x[i] = to[i];
    transpose_from<lanes / 2>(x);
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) to[i] = x[i];
  }

 private:
  // Swaps the upper lanes of each vector with the lower lanes of the vector `step` after it, then does the same within
  // halves.
  template <int step>
  static void transpose_from(V* x) {
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) {
      if ((i & step) == 0) swap_lanes<step>(x[i], x[i + step], std::make_integer_sequence<int, lanes>());
    }
    if constexpr (step > 1) transpose_from<step / 2>(x);
  }
  template <int step, int... l>
  static void swap_lanes(V& a, V& b, std::integer_sequence<int, l...>) {
    const V low = __builtin_shufflevector(a, b, (l & step ? lanes + l - step : l)...);
    b = __builtin_shufflevector(a, b, (l & step ? lanes + l : l + step)...);
    a = low;
  }
  // Unrolls loops over arrays that are indexed by constants, so that they stay in registers.
  static void load_block(const V* from, V* x) {
#pragma GCC unroll 8
    for (int i = 0; i < block; ++i) x[i] = from[i];
  }
  static void store_block(const V* x, V* to) {
#pragma GCC unroll 8
    for (int i = 0; i < block; ++i) to[i] = x[i];
  }
  // Compares key i of a block with key i ^ `distance`.
  template <int distance>
  static void exchange_block(V* x) {
#pragma GCC unroll 8
    for (int i = 0; i < block; ++i) {
      if (i < (i ^ distance)) exchange(x[i], x[i ^ distance]);
    }
  }
  static void sort_block(V* to) {
    V x[block];
    load_block(to, x);
    exchange_block<1>(x);
    exchange_block<3>(x), exchange_block<1>(x);
    exchange_block<7>(x), exchange_block<2>(x), exchange_block<1>(x);
    store_block(x, to);
  }
  static void merge_block(V* to) {
    V x[block];
    load_block(to, x);
    exchange_block<4>(x), exchange_block<2>(x), exchange_block<1>(x);
    store_block(x, to);
  }
  // Merges the two sorted halves of k >= 2 * block keys.
  static void merge(V* x, int64_t k) {
    const int64_t quarter = k / 4;
    for (int64_t i = 0; i < quarter; ++i) {
      V a = x[i], b = x[i + quarter], c = x[k - 1 - i - quarter], d = x[k - 1 - i];
      exchange(a, d), exchange(b, c);
      exchange(a, b), exchange(c, d);
      x[i] = a, x[i + quarter] = b, x[k - 1 - i - quarter] = c, x[k - 1 - i] = d;
    }
    finish(x, k, k / 8);
  }
  // Compares keys that are `stride` apart, then half as far apart, and so on.
  static void finish(V* x, int64_t k, int64_t stride) {
    for (; stride >= 2 * block; stride /= 4) {
      const int64_t half = stride / 2;
      for (int64_t first = 0; first < k; first += 2 * stride) {
        for (int64_t i = first; i < first + half; ++i) {
          V a = x[i], b = x[i + half], c = x[i + stride], d = x[i + stride + half];
          exchange(a, c), exchange(b, d);
          exchange(a, b), exchange(c, d);
          x[i] = a, x[i + half] = b, x[i + stride] = c, x[i + stride + half] = d;
        }
      }
    }
    for (; stride >= block; stride /= 2) {
      for (int64_t first = 0; first < k; first += 2 * stride) {
        for (int64_t i = first; i < first + stride; ++i) exchange(x[i], x[i + stride]);
      }
    }
    for (int64_t i = 0; i < k; i += block) merge_block(x + i);
  }
  // Does what merge() does to k keys, of which only the first n, more than half, exist.
  static void merge_part(V* x, int64_t k, int64_t n) {
    for (int64_t j = k / 2; j < n; ++j) exchange(x[k - 1 - j], x[j]);
    finish(x, k / 2, k / 4);
    finish_part(x + k / 2, k / 2, n - k / 2);
  }
  // Does what finish(x, k, k / 2) does, if only the first n of the k keys exist.
  static void finish_part(V* x, int64_t k, int64_t n) {
    if (n == k) return finish(x, k, k / 2);
    const int64_t half = k / 2;
    if (n <= half) return finish_part(x, half, n);
    for (int64_t i = 0; i + half < n; ++i) exchange(x[i], x[i + half]);
    finish(x, half, half / 2);
    finish_part(x + half, half, n - half);
  }
};

}  // namespace tp::sort::host
#endif
