// Radix sort by one host thread. It sorts words of keys (sort/host_items.h), which may have payloads.
//
// A long range is partitioned by its leading digit, and then each bucket is sorted on its own (MSD). A range that fits
// in the cache is sorted from the least significant digit (LSD), by as few digits as the bits in which its keys differ
// need. A range of at most 20 keys is sorted by insertion.
#pragma once
#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "block/on_vectors.h"
#include "sort/host_items.h"
#include "sort/row_network.h"

namespace tp::sort::host {

constexpr int digit_bits = 8, radix = 1 << digit_bits;
constexpr int wide_bits = 12;  // bits per digit in the cache, if there are enough keys to pay for that many counters
// Bytes of keys and payloads that, with their spare copy of the same size, stay in a core's cache.
constexpr int64_t cache_bytes = 1 << 19;
// Bytes of keys and payloads from which on a scatter writes whole cache lines; fewer stay in a last-level cache.
constexpr int64_t combined_bytes = 1 << 25;

template <class W>
struct Digit {
  int shift;
  W mask;
  Digit(int shift, int bits) : shift(shift), mask(W(bits < 64 ? (uint64_t(1) << bits) - 1 : ~uint64_t(0))) {}
  size_t operator()(W key) const { return size_t(W(key >> shift) & mask); }
};

// Replaces the count of every digit by the number of keys with a smaller digit (exclusive sums in place).
template <class Count>
void begins_of(Count* counts, size_t n) {
  Count sum = 0;
  for (size_t d = 0; d < n; ++d) sum += std::exchange(counts[d], sum);
}

template <class W, class Payload, class Count>
void scatter(const Buffer<W, Payload>& from, const Buffer<W, Payload>& to, int64_t n, Digit<W> digit, Count* next) {
  for (int64_t i = 0; i < n; ++i) to.put(int64_t(next[digit(from.keys[i])]++), from, i);
}

// Collects the elements of `radix` buckets to whole cache lines, which streaming stores write past the cache. A plain
// scatter to so many pages would fetch every line first, and miss the TLB at every store.
template <class V>
class CombinedWrites {
  static constexpr int64_t line = 64 / int64_t(sizeof(V));

 public:
  explicit CombinedWrites(V* to) : to_(to), phase_(int64_t(reinterpret_cast<uintptr_t>(to) / sizeof(V)) % line) {}

  // Writes element `at` of the output, which is the next element of its bucket. The bucket begins at `first`.
  void put(size_t bucket, int64_t at, V value, int64_t first) {
    const int64_t slot = (at + phase_) & (line - 1);
    lines_[bucket][slot] = value;
    if (slot == line - 1) flush(bucket, at, first);
  }
  // Writes the remaining elements of a bucket that ends before `end`.
  void finish(size_t bucket, int64_t end, int64_t first) {
    const int64_t left = tp::min((end + phase_) & (line - 1), end - first);
    for (int64_t at = end - left; at < end; ++at) to_[at] = lines_[bucket][(at + phase_) & (line - 1)];
  }

 private:
  void flush(size_t bucket, int64_t at, int64_t first) {
    const int64_t begin = at - (line - 1);
    if (begin < first) {  // the first elements of the line belong to another bucket
      for (int64_t i = first; i <= at; ++i) to_[i] = lines_[bucket][(i + phase_) & (line - 1)];
      return;
    }
#ifdef __SSE2__
    const auto* from = reinterpret_cast<const __m128i*>(lines_[bucket]);
    auto* to = reinterpret_cast<__m128i*>(to_ + begin);
    for (int i = 0; i < 4; ++i) _mm_stream_si128(to + i, _mm_load_si128(from + i));
#else
    std::copy(lines_[bucket], lines_[bucket] + line, to_ + begin);
#endif
  }

  alignas(64) V lines_[radix][line];
  V* to_;
  int64_t phase_;
};

// Scatters more elements than a cache holds. All threads see the writes when it returns.
template <class W, class Payload>
void scatter_combined(const Buffer<W, Payload>& from, const Buffer<W, Payload>& to, int64_t n, Digit<W> digit,
                      int64_t* next) {
  using L = Buffer<W, Payload>;
  std::array<int64_t, radix> first;
  std::copy(next, next + radix, first.begin());
  CombinedWrites<W> keys(to.keys);
  CombinedWrites<typename std::conditional<L::has_payload, Payload, W>::type> payloads([&] {
    if constexpr (L::has_payload) {
      return to.payloads;
    } else {
      return to.keys;
    }
  }());
  for (int64_t i = 0; i < n; ++i) {
    const W key = from.keys[i];
    const size_t bucket = digit(key);
    const int64_t at = next[bucket]++;
    keys.put(bucket, at, key, first[bucket]);
    if constexpr (L::has_payload) payloads.put(bucket, at, from.payloads[i], first[bucket]);
  }
  for (size_t bucket = 0; bucket < size_t(radix); ++bucket) {
    keys.finish(bucket, next[bucket], first[bucket]);
    if constexpr (L::has_payload) payloads.finish(bucket, next[bucket], first[bucket]);
  }
#ifdef __SSE2__
  _mm_sfence();
#endif
}

// Scatters n of `whole` elements, by combined writes if `whole` elements do not fit in a cache.
template <class W, class Payload>
void scatter_by_size(const Buffer<W, Payload>& from, const Buffer<W, Payload>& to, int64_t n, int64_t whole,
                     Digit<W> digit, int64_t* next) {
  constexpr int64_t bytes = int64_t(sizeof(W)) + (Buffer<W, Payload>::has_payload ? int64_t(sizeof(Payload)) : 0);
  whole* bytes >= combined_bytes ? scatter_combined(from, to, n, digit, next) : scatter(from, to, n, digit, next);
}

// Returns the bits in which any of the keys differs from `key`.
template <class W>
W differing(const W* keys, int64_t n, W key) {
  W bits = 0;
  for (int64_t i = 0; i < n; ++i) bits = W(bits | (keys[i] ^ key));
  return bits;
}

template <class W>
int width(W bits) {  // one more than the highest set bit
  int n = 0;
  for (; bits; bits = W(bits >> 1)) ++n;
  return n;
}

template <class W>
int lowest(W bits) {
  int n = 0;
  while (!(bits >> n & 1)) ++n;
  return n;
}

// Returns a digit of the leading bits, which is as wide as a digit may be, but has no bits below the lowest.
template <class W>
Digit<W> leading_digit(W bits) {
  const int top = width(bits), shift = tp::max(lowest(bits), top - digit_bits);
  return {shift, top - shift};
}
template <class W>
W below(W bits, Digit<W> digit) {
  return W(bits & W((uint64_t(1) << digit.shift) - 1));
}

template <class W, class Payload>
void insertion_sort(const Buffer<W, Payload>& x, int64_t n, W window) {
  for (int64_t i = 1; i < n; ++i) {
    const W key = x.keys[i], rank = W(key & window);
    int64_t j = i;
    if constexpr (Buffer<W, Payload>::has_payload) {
      const Payload load = x.payloads[i];
      for (; j > 0 && rank < W(x.keys[j - 1] & window); --j) x.put(j, x, j - 1);
      x.payloads[j] = load;
    } else {
      for (; j > 0 && rank < W(x.keys[j - 1] & window); --j) x.put(j, x, j - 1);
    }
    x.keys[j] = key;
  }
}

// Counts at p << bits | d how often digit p equals d, for `digits` digits of `bits` bits from bit `shift` on. Bits
// outside `mask` count as 0.
template <int digits, class W>
void count_digits(const W* keys, int64_t n, W mask, int shift, int bits, uint32_t* counts) {
  const Digit<W> digit(0, bits);
  for (int64_t i = 0; i < n; ++i) {
    const W key = W(W(keys[i] & mask) >> shift);
    for (int p = 0; p < digits; ++p) ++counts[size_t(p) << bits | digit(W(key >> (p * bits)))];
  }
}

// Returns the bits of the widest digit whose counters pay for n keys.
inline int widest_digit(int64_t n) { return n < 96 ? 5 : n < 8192 ? digit_bits : wide_bits; }

// Sorts `from` by the bits of `differ`, with `to` as the alternate buffer. The result is in `to` if `in_to`, and
// otherwise in `from`.
template <class W, class Payload>
void sort_lsd(Buffer<W, Payload> from, Buffer<W, Payload> to, int64_t n, W differ, bool in_to) {
  const int low = lowest(differ), top = width(differ), bits = top - low;
  const int passes = ceil_div(bits, widest_digit(n)), each = ceil_div(bits, passes);
  const auto digit_of = [&](int pass) {
    const int shift = low + pass * each;
    return Digit<W>(shift, tp::min(each, top - shift));
  };
  std::array<uint32_t, size_t(2) << wide_bits> counts;  // of several digits at once, counted in one pass over the keys
  const int together = tp::min(passes, tp::min(4, 2 << (wide_bits - each)));
  for (int first = 0; first < passes; first += together) {
    const int last = tp::min(first + together, passes), shift = low + first * each;
    std::fill(counts.begin(), counts.begin() + ((last - first) << each), 0u);
    const auto count = last - first == 1   ? &count_digits<1, W>
                       : last - first == 2 ? &count_digits<2, W>
                       : last - first == 3 ? &count_digits<3, W>
                                           : &count_digits<4, W>;
    count(from.keys, n, Digit<W>(0, top).mask, shift, each, counts.data());
    for (int p = first; p < last; ++p) {
      uint32_t* next = counts.data() + (size_t(p - first) << each);
      const Digit<W> digit = digit_of(p);
      if (next[digit(from.keys[0])] == uint32_t(n)) continue;  // all keys are in one bucket, so none would move
      begins_of(next, size_t(1) << each);
      scatter(from, to, n, digit, next);
      std::swap(from, to);
      in_to = !in_to;
    }
  }
  if (in_to) to.copy(from, n);
}

#ifdef TP_WITH_ROW_NETWORKS
// to[0 .. n) = from[0 .. n) in order, which may be the same array.
template <class W>
void sort_by_network(const W* from, W* to, int64_t n) {
  struct alignas(64) Line {
    W words[64 / sizeof(W)];
  };
  constexpr W sign = W(W(1) << (8 * sizeof(W) - 1));
  // Room for either size of vectors, in lines.
  const int64_t most = tp::max(RowNetwork<W, 64>::padded(n), ceil_div(RowNetwork<W, 32>::padded(n), int64_t(2)));
  const std::unique_ptr<Line[]> lines(new Line[size_t(2 * most)]);
  on_widest_vectors([=, words = lines[0].words](auto bytes) {
    using Network = RowNetwork<W, bytes.value>;
    using S = typename Network::S;
    using V = typename Network::V;
    const int64_t vectors = Network::padded(n), size = vectors * Network::lanes;
    V *const x = reinterpret_cast<V*>(words), *const y = x + vectors;
    S *const unsorted = reinterpret_cast<S*>(x), *const sorted = reinterpret_cast<S*>(y);
    TP_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) unsorted[i] = S(W(from[i] ^ sign));
    std::fill(unsorted + n, unsorted + size, std::numeric_limits<S>::max());
    Network::sort_array(x, y, vectors);
    TP_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) to[i] = W(W(sorted[i]) ^ sign);
  });
}
#endif

template <class W, class Payload>
void sort_range(const Buffer<W, Payload>& from, const Buffer<W, Payload>& to, int64_t n, W window, bool in_to,
                int64_t most_in_network = 0);

// Sorts by the leading two digits alone, which distinguish most keys, and then sorts each run of keys that share them.
template <class W, class Payload>
void sort_leading(const Buffer<W, Payload>& from, const Buffer<W, Payload>& to, int64_t n, W differ, W window,
                  bool in_to) {
  const int top = width(differ), shift = tp::max(0, top - 2 * widest_digit(n));
  const W low = Digit<W>(0, shift).mask, leading = W(differ & W(~low));
  sort_lsd(from, to, n, leading, in_to);
  if (!W(differ & low)) return;
  const Buffer<W, Payload>&sorted = in_to ? to : from, &spare = in_to ? from : to;
  for (int64_t begin = 0, i = 1; i <= n; ++i) {
    if (i < n && !W((sorted.keys[i] ^ sorted.keys[i - 1]) & leading)) continue;
    if (i - begin > 1) sort_range(sorted.at(begin), spare.at(begin), i - begin, W(window & low), false);
    begin = i;
  }
}

// Sorts from[0 .. n) by the bits of `window`. The result is in `to` if `in_to`, else in `from`. Up to `most_in_network`
// words are sorted by a network, which compares all of their bits.
template <class W, class Payload>
void sort_range(const Buffer<W, Payload>& from, const Buffer<W, Payload>& to, int64_t n, W window, bool in_to,
                int64_t most_in_network) {
  constexpr int64_t few = 20,
                    cached = cache_bytes / int64_t(sizeof(W) + Buffer<W, Payload>::has_payload * sizeof(Payload));
  if (n <= few) {
    insertion_sort(from, n, window);
    if (in_to) to.copy(from, n);
    return;
  }
  const W differ = W(window & differing(from.keys, n, from.keys[0]));
  if (!differ) {
    if (in_to) to.copy(from, n);
    return;
  }
#ifdef TP_WITH_ROW_NETWORKS
  if constexpr (!Buffer<W, Payload>::has_payload && sizeof(W) >= 4) {
    if (n <= most_in_network && width(differ) - lowest(differ) > widest_digit(n)) {
      return sort_by_network(from.keys, in_to ? to.keys : from.keys, n);
    }
  }
#endif
  if (n <= cached) return sort_leading(from, to, n, differ, window, in_to);
  const Digit<W> digit = leading_digit(differ);
  std::array<int64_t, radix> next{};
  for (int64_t i = 0; i < n; ++i) ++next[digit(from.keys[i])];
  begins_of(next.data(), radix);
  scatter_by_size(from, to, n, n, digit, next.data());
  int64_t begin = 0;
  for (const int64_t end : next) {  // after the scatter, next[d] is where bucket d ends
    if (end > begin)
      sort_range(to.at(begin), from.at(begin), end - begin, below(window, digit), !in_to, most_in_network);
    begin = end;
  }
}

}  // namespace tp::sort::host
