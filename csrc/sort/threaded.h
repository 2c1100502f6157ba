// Radix sort of one host thread: images of keys, and a load that moves with each.
//
// A long stretch is partitioned by its leading digit, bucket after bucket (MSD); what fits in the cache is sorted from
// the least digit up (LSD), by as few digits as the bits that differ there need. A handful is sorted by insertion.
#pragma once
#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "sort/sort.h"

namespace tp::sort::host {

struct None {};  // the load of a key that travels alone

template <class W, class Load>
struct Lane {
  static constexpr bool loaded = !std::is_same<Load, None>::value;
  W* keys;
  Load* loads;

  Lane at(int64_t i) const { return {keys + i, loaded ? loads + i : loads}; }
  void put(int64_t i, const Lane& from, int64_t j) const {
    keys[i] = from.keys[j];
    if constexpr (loaded) loads[i] = from.loads[j];
  }
  void copy(const Lane& from, int64_t n) const {
    std::copy(from.keys, from.keys + n, keys);
    if constexpr (loaded) std::copy(from.loads, from.loads + n, loads);
  }
};

constexpr int digit_bits = 8, radix = 1 << digit_bits;
constexpr int wide_bits = 12;             // of a digit in the cache, where there are keys enough to fill its counters
constexpr int64_t cache_bytes = 1 << 18;  // of keys and loads: twice that, with the spare, stays in a core's cache

template <class W>
struct Digit {
  int shift;
  W mask;
  Digit(int shift, int bits) : shift(shift), mask(W((uint64_t(1) << bits) - 1)) {}
  size_t operator()(W key) const { return size_t(W(key >> shift) & mask); }
};

// Where every digit begins, from how many there are: exclusive sums, in place.
template <class Count>
void begins_of(Count* counts, size_t n) {
  Count sum = 0;
  for (size_t d = 0; d < n; ++d) sum += std::exchange(counts[d], sum);
}

template <class W, class Load, class Count>
void scatter(const Lane<W, Load>& from, const Lane<W, Load>& to, int64_t n, Digit<W> digit, Count* next) {
  for (int64_t i = 0; i < n; ++i) to.put(int64_t(next[digit(from.keys[i])]++), from, i);
}

// The bits in which the keys differ from `key`.
template <class W>
W differing(const W* keys, int64_t n, W key) {
  W bits = 0;
  for (int64_t i = 0; i < n; ++i) bits = W(bits | (keys[i] ^ key));
  return bits;
}

template <class W>
int width(W bits) {  // one more than the highest
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

// The leading bits, as many as a digit has, and none below the lowest.
template <class W>
Digit<W> leading_digit(W bits) {
  const int top = width(bits), shift = tp::max(lowest(bits), top - digit_bits);
  return {shift, top - shift};
}
template <class W>
W below(W bits, Digit<W> digit) {
  return W(bits & W((uint64_t(1) << digit.shift) - 1));
}

template <class W, class Load>
void insertion_sort(const Lane<W, Load>& x, int64_t n, W window) {
  for (int64_t i = 1; i < n; ++i) {
    const W key = x.keys[i], rank = W(key & window);
    int64_t j = i;
    if constexpr (Lane<W, Load>::loaded) {
      const Load load = x.loads[i];
      for (; j > 0 && rank < W(x.keys[j - 1] & window); --j) x.put(j, x, j - 1);
      x.loads[j] = load;
    } else {
      for (; j > 0 && rank < W(x.keys[j - 1] & window); --j) x.put(j, x, j - 1);
    }
    x.keys[j] = key;
  }
}

// From `from` to `to`, which end up where `in_to` says; `differ` are the bits to sort by.
template <class W, class Load>
void sort_lsd(Lane<W, Load> from, Lane<W, Load> to, int64_t n, W differ, bool in_to) {
  const int low = lowest(differ), top = width(differ), bits = top - low,
            widest = n < 1024   ? 5
                     : n < 8192 ? digit_bits
                                : wide_bits;
  const int passes = ceil_div(bits, widest), each = ceil_div(bits, passes);
  const auto digit_of = [&](int pass) {
    const int shift = low + pass * each;
    return Digit<W>(shift, tp::min(each, top - shift));
  };
  std::array<uint32_t, size_t(2) << wide_bits> counts;  // of all digits at once: one pass over the keys
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
      if (next[digit(from.keys[0])] == uint32_t(n)) continue;  // one bucket: nothing would move
      begins_of(next, size_t(1) << each);
      scatter(from, to, n, digit, next);
      std::swap(from, to);
      in_to = !in_to;
    }
  }
  if (in_to) to.copy(from, n);
}

// Sorts from[0 .. n) by the bits of `window`; the result lies in `to` if `in_to`, else where it was.
template <class W, class Load>
void sort_stretch(const Lane<W, Load>& from, const Lane<W, Load>& to, int64_t n, W window, bool in_to) {
  constexpr int64_t few = 20, cached = cache_bytes / int64_t(sizeof(W) + Lane<W, Load>::loaded * sizeof(Load));
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
  for (const int64_t end : next) {  // each has moved on to where the next begins
    if (end > begin) sort_stretch(to.at(begin), from.at(begin), end - begin, below(window, digit), !in_to);
    begin = end;
  }
}

}  // namespace tp::sort::host
