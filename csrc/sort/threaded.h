// Radix sort by one host thread: images of keys, each with its payload.
//
// A long range is partitioned by its leading digit, and each bucket is then sorted by itself (MSD). A range that fits
// in the cache is sorted from the least significant digit (LSD), with as few digits as its differing bits need. A range
// of at most 20 keys is sorted by insertion.
#pragma once
#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "sort/sort.h"

namespace tp::sort::host {

struct NoPayload {};  // keys-only sort

template <class W, class Payload>
struct Buffer {
  static constexpr bool has_payload = !std::is_same<Payload, NoPayload>::value;
  W* keys;
  Payload* payloads;

  Buffer at(int64_t i) const { return {keys + i, has_payload ? payloads + i : payloads}; }
  void put(int64_t i, const Buffer& from, int64_t j) const {
    keys[i] = from.keys[j];
    if constexpr (has_payload) payloads[i] = from.payloads[j];
  }
  void copy(const Buffer& from, int64_t n) const {
    std::copy(from.keys, from.keys + n, keys);
    if constexpr (has_payload) std::copy(from.payloads, from.payloads + n, payloads);
  }
};

constexpr int digit_bits = 8, radix = 1 << digit_bits;
constexpr int wide_bits = 12;  // bits per digit for ranges in the cache that are long enough to fill the counters
constexpr int64_t cache_bytes =
    1 << 18;  // of keys and payloads; twice that, with the alternate buffer, stays in the cache of a core

template <class W>
struct Digit {
  int shift;
  W mask;
  Digit(int shift, int bits) : shift(shift), mask(W((uint64_t(1) << bits) - 1)) {}
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

// Returns the bits in which any of the keys differs from `key`.
template <class W>
W differing(const W* keys, int64_t n, W key) {
  W bits = 0;
  for (int64_t i = 0; i < n; ++i) bits = W(bits | (keys[i] ^ key));
  return bits;
}

template <class W>
int width(W bits) {  // one more than the index of the highest set bit
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

// The highest bits of `bits`, at most digit_bits of them, and none below the lowest set bit.
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
      const Payload payload = x.payloads[i];
      for (; j > 0 && rank < W(x.keys[j - 1] & window); --j) x.put(j, x, j - 1);
      x.payloads[j] = payload;
    } else {
      for (; j > 0 && rank < W(x.keys[j - 1] & window); --j) x.put(j, x, j - 1);
    }
    x.keys[j] = key;
  }
}

// Sorts `from` by the bits of `differ`, with `to` as the alternate buffer. The result is in `to` if `in_to`, else in
// `from`.
template <class W, class Payload>
void sort_lsd(Buffer<W, Payload> from, Buffer<W, Payload> to, int64_t n, W differ, bool in_to) {
  const int low = lowest(differ), top = width(differ), bits = top - low,
            widest = n < 1024   ? 5
                     : n < 8192 ? digit_bits
                                : wide_bits;
  const int passes = ceil_div(bits, widest), each = ceil_div(bits, passes);
  const auto digit_of = [&](int pass) {
    const int shift = low + pass * each;
    return Digit<W>(shift, tp::min(each, top - shift));
  };
  std::array<uint32_t, size_t(2) << wide_bits> counts;  // of all digits, counted in one pass over the keys
  const int together = tp::min(passes, 2 << (wide_bits - each));
  for (int first = 0; first < passes; first += together) {
    const int last = tp::min(first + together, passes);
    std::fill(counts.begin(), counts.begin() + ((last - first) << each), 0u);
    for (int64_t i = 0; i < n; ++i) {
      for (int p = first; p < last; ++p) ++counts[size_t(p - first) << each | digit_of(p)(from.keys[i])];
    }
    for (int p = first; p < last; ++p) {
      uint32_t* next = counts.data() + (size_t(p - first) << each);
      const Digit<W> digit = digit_of(p);
      if (next[digit(from.keys[0])] == uint32_t(n))
        continue;  // all keys are in one bucket, so the pass would move nothing
      begins_of(next, size_t(1) << each);
      scatter(from, to, n, digit, next);
      std::swap(from, to);
      in_to = !in_to;
    }
  }
  if (in_to) to.copy(from, n);
}

// Sorts from[0 .. n) by the bits of `window`. The result is in `to` if `in_to`, else in `from`.
template <class W, class Payload>
void sort_range(const Buffer<W, Payload>& from, const Buffer<W, Payload>& to, int64_t n, W window, bool in_to) {
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
  if (n <= cached) return sort_lsd(from, to, n, differ, in_to);
  const Digit<W> digit = leading_digit(differ);
  std::array<int64_t, radix> next{};
  for (int64_t i = 0; i < n; ++i) ++next[digit(from.keys[i])];
  begins_of(next.data(), radix);
  scatter(from, to, n, digit, next.data());
  int64_t begin = 0;
  for (const int64_t end : next) {  // scatter() has advanced each start to where the next digit begins
    if (end > begin) sort_range(to.at(begin), from.at(begin), end - begin, below(window, digit), !in_to);
    begin = end;
  }
}

}  // namespace tp::sort::host
