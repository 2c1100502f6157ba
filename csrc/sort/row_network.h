// Bitonic sorts on vectors, on the host. Many short rows are sorted at once, one per lane, so comparisons never cross
// lanes. A single array is sorted lane by lane, and then the lanes are merged.
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

// W is the image of a key, but signed, because the processor's vector instructions compare signed words. Vectors have
// `bytes` bytes.
template <class W, int bytes>
struct RowNetwork {
  using S = std::make_signed_t<W>;
  static constexpr int lanes = bytes / int(sizeof(W));
  typedef S V __attribute__((vector_size(bytes), aligned(sizeof(S)), may_alias));
  // Keys of a lane in registers: at least as many as there are lanes, where arrays are sorted.
  static constexpr int block = lanes == 16 && sizeof(W) == 4 ? 16 : 8;
  static_assert(sizeof(W) > 1, "a counting sort of bytes is faster");

  static void exchange(V& a, V& b) {
    const V low = a < b ? a : b, high = a < b ? b : a;
    a = low;
    b = high;
  }
  // Sorts each lane of x[0 .. n); n is a multiple of `block`.
  static void sort(V* x, int64_t n) {
    for (int64_t i = 0; i < n; i += block) sort_block(x + i);
    merge_runs<false>(x, n, block);
  }

  // The vectors that sort_array() takes for n keys.
  static int64_t padded(int64_t n) {
    const int64_t vectors = ceil_div(n, int64_t(lanes)), part = part_of(vectors);
    return ceil_div(vectors, part) * part;
  }
  // Sorts all keys of x[0 .. n) into y[0 .. n) in the order of memory, n = padded(n). Each lane of a part is sorted by
  // itself, the lanes become runs that follow each other, and merges look across lanes.
  static void sort_array(V* x, V* y, int64_t n) {
    static_assert(lanes <= block, "a block is made of squares of vectors");
    const int64_t part = part_of(n);
    for (int64_t i = 0; i < n; i += part) {
      sort(x + i, part);
      for (int64_t j = 0; j < part; j += lanes) transpose(x + i + j, 1, y + i + j / lanes, part / lanes);
    }
    for (int64_t i = 0; i < n; i += block) merge_in_block(y + i, part / lanes);
    merge_runs<true>(y, n, tp::max(int64_t(block), part / lanes));
  }

  // Transposes a square of vectors: exchanges lanes and vectors. Vectors are read `from_stride` apart, and written
  // `to_stride` apart, with the bits of `flip` inverted in each word.
  static void transpose(const V* from, int64_t from_stride, V* to, int64_t to_stride, S flip = 0) {
    V x[lanes];
#pragma GCC unroll 32
    for (int i = 0; i < lanes; ++i) x[i] = from[i * from_stride];
    transpose_from<lanes / 2>(x);
#pragma GCC unroll 32
    for (int i = 0; i < lanes; ++i) to[i * to_stride] = x[i] ^ flip;
  }

 private:
  // Swaps the upper lanes of each vector with the lower lanes of the vector `step` after it, then does the same within
  // halves.
  template <int step>
  static void transpose_from(V* x) {
#pragma GCC unroll 32
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
#pragma GCC unroll 16
    for (int i = 0; i < block; ++i) x[i] = from[i];
  }
  static void store_block(const V* x, V* to) {
#pragma GCC unroll 16
    for (int i = 0; i < block; ++i) to[i] = x[i];
  }
  // Compares key i of a block with key i ^ `distance`.
  template <int distance>
  static void exchange_block(V* x) {
#pragma GCC unroll 16
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
    if constexpr (block > 8) exchange_block<15>(x), exchange_block<4>(x), exchange_block<2>(x), exchange_block<1>(x);
    store_block(x, to);
  }
  template <bool across>
  static void merge_block(V* to) {
    V x[block];
    load_block(to, x);
    if constexpr (block > 8) exchange_block<8>(x);
    exchange_block<4>(x), exchange_block<2>(x), exchange_block<1>(x);
    if constexpr (across) exchange_in_vectors(x);
    store_block(x, to);
  }
  // In the functions below, `across` says that keys are in the order of memory; otherwise each lane has its own keys.

  // Returns the keys of a vector in descending order.
  template <bool across>
  static V reversed(V x) {
    if constexpr (across) return reverse(x, std::make_integer_sequence<int, lanes>());
    return x;
  }
  template <int... l>
  static V reverse(V x, std::integer_sequence<int, l...>) {
    return __builtin_shufflevector(x, x, (lanes - 1 - l)...);
  }
  // Merges sorted runs of `half` vectors, of which the last may be shorter, until one is left. Each pair of runs is
  // merged as soon as it exists, while it is in the cache.
  template <bool across>
  static void merge_runs(V* x, int64_t n, int64_t half) {
    for (int64_t end = half; end <= n; end += half) {
      for (int64_t h = half; end % (2 * h) == 0; h *= 2) merge<across>(x + end - 2 * h, 2 * h);
    }
    for (int64_t h = half; h < n; h *= 2) {
      const int64_t rest = n % (2 * h);
      if (rest > h) merge_part<across>(x + n - rest, 2 * h, rest);
    }
  }
  // Merges runs of `half` vectors, less than a block, to runs of a block.
  static void merge_in_block(V* to, int64_t half) {
    V x[block];
    load_block(to, x);
    if (half <= 1) merge_pairs<2>(x);
    if (half <= 2) merge_pairs<4>(x);
    if (half <= 4) merge_pairs<8>(x);
    if constexpr (block > 8) {
      if (half <= 8) merge_pairs<16>(x);
    }
    store_block(x, to);
  }
  template <int k>
  static void merge_pairs(V* x) {
#pragma GCC unroll 16
    for (int i = 0; i < block; ++i) {
      const int other = i ^ (k - 1);
      if (i > other) continue;
      x[other] = reversed<true>(x[other]);
      exchange(x[i], x[other]);
      x[other] = reversed<true>(x[other]);
    }
    if constexpr (k > 8) exchange_block<4>(x);
    if constexpr (k > 4) exchange_block<2>(x);
    if constexpr (k > 2) exchange_block<1>(x);
    exchange_in_vectors(x);
  }
  // Compares and exchanges keys inside vectors.
  static void exchange_in_vectors(V* x) {
    transpose_block(x);
    exchange_down<lanes / 2>(x);
    transpose_block(x);
  }
  static void transpose_block(V* x) {
#pragma GCC unroll 16
    for (int i = 0; i < block; i += lanes) transpose_from<lanes / 2>(x + i);
  }
  template <int distance>
  static void exchange_down(V* x) {
    exchange_block<distance>(x);
    if constexpr (distance > 1) exchange_down<distance / 2>(x);
  }
  static int64_t part_of(int64_t n) {
    int64_t part = block;
    while (part * 32 <= n) part *= 2;
    return part;
  }
  // Merges the two sorted halves of k >= 2 * block vectors.
  template <bool across>
  static void merge(V* x, int64_t k) {
    const int64_t quarter = k / 4;
    for (int64_t i = 0; i < quarter; ++i) {
      V a = x[i], b = x[i + quarter], c = reversed<across>(x[k - 1 - i - quarter]), d = reversed<across>(x[k - 1 - i]);
      exchange(a, d), exchange(b, c);
      exchange(a, b), exchange(c, d);
      x[i] = a, x[i + quarter] = b, x[k - 1 - i - quarter] = reversed<across>(c), x[k - 1 - i] = reversed<across>(d);
    }
    finish<across>(x, k, k / 8);
  }
  // Compares keys that are `stride` apart, then half as far apart, and so on.
  template <bool across>
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
    for (int64_t i = 0; i < k; i += block) merge_block<across>(x + i);
  }
  // Does what merge() does to k vectors, of which only the first n, more than half, exist.
  template <bool across>
  static void merge_part(V* x, int64_t k, int64_t n) {
    for (int64_t j = k / 2; j < n; ++j) {
      V low = x[k - 1 - j], high = reversed<across>(x[j]);
      exchange(low, high);
      x[k - 1 - j] = low, x[j] = reversed<across>(high);
    }
    finish<across>(x, k / 2, k / 4);
    finish_part<across>(x + k / 2, k / 2, n - k / 2);
  }
  // Does what finish(x, k, k / 2) does, if only the first n of the k vectors exist.
  template <bool across>
  static void finish_part(V* x, int64_t k, int64_t n) {
    for (; n < k; k /= 2) {
      const int64_t half = k / 2;
      if (n <= half) continue;
      for (int64_t i = 0; i + half < n; ++i) exchange(x[i], x[i + half]);
      finish<across>(x, half, half / 2);
      x += half, n -= half;
    }
    finish<across>(x, k, k / 2);
  }
};

}  // namespace tp::sort::host
#endif
