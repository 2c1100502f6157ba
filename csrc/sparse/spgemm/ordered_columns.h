// A set of columns that comes out in order: a tree of bits, 64 children per word. Taking the set out clears it, and
// costs a few operations per column, however wide the matrix is.
#pragma once
#include <memory>

#include "core/macros.h"

namespace tp::sparse {

class OrderedColumns {
 public:
  explicit OrderedColumns(int64_t cols)
      : top_words_(uint64_t(cols) / (1 << 18) + 1),
        bits_(new uint64_t[uint64_t(cols) / 64 + 1]()),
        middle_(new uint64_t[uint64_t(cols) / 4096 + 1]()),
        top_(new uint64_t[top_words_]()) {}

  // Columns next to each other often share a word, which is written once.
  template <class I>
  void add(const I* columns, int64_t n) {
    if (n == 0) return;
    uint64_t word = uint64_t(columns[0]) / 64, mask = 0;
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t column = uint64_t(columns[i]);
      if (column / 64 != word) {
        set(word, mask);
        word = column / 64;
        mask = 0;
      }
      mask |= bit(column);
    }
    set(word, mask);
  }
  // Columns first to first + n - 1, at least one.
  void add_band(uint64_t first, uint64_t n) {
    const uint64_t last = first + n - 1;
    const uint64_t from = ~uint64_t(0) << (first % 64), to = ~uint64_t(0) >> (63 - last % 64);
    if (first / 64 == last / 64) return set(first / 64, from & to);
    set(first / 64, from);
    for (uint64_t word = first / 64 + 1; word < last / 64; ++word) set(word, ~uint64_t(0));
    set(last / 64, to);
  }
  // Writes the columns in order, and leaves none.
  template <class I>
  void take(I* to) {
    for (uint64_t t = 0; t < top_words_; ++t) {
      each_bit(top_[t], t, [&](uint64_t m) {
        each_bit(middle_[m], m,
                 [&](uint64_t word) { each_bit(bits_[word], word, [&](uint64_t column) { *to++ = I(column); }); });
      });
    }
  }

 private:
  static uint64_t bit(uint64_t i) { return uint64_t(1) << (i % 64); }
  void set(uint64_t word, uint64_t mask) {
    const uint64_t before = bits_[word];
    bits_[word] = before | mask;
    if (before != 0) return;
    uint64_t& middle = middle_[word / 64];
    if (middle == 0) top_[word / 4096] |= bit(word / 64);
    middle |= bit(word);
  }
  template <class F>
  static void each_bit(uint64_t& word, uint64_t index, F f) {
    for (uint64_t rest = word; rest != 0; rest &= rest - 1) f(index * 64 + uint64_t(__builtin_ctzll(rest)));
    word = 0;
  }

  uint64_t top_words_;
  std::unique_ptr<uint64_t[]> bits_, middle_, top_;
};

}  // namespace tp::sparse
