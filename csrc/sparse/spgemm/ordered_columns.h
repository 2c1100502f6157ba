// A set of columns that is read out in order: a tree of bits with 64 children per word. Reading the set out clears it,
// and costs a few operations per column, however wide the matrix is.
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

  // Calls f(word, its bits) for the words of columns; adjacent columns often share a word.
  template <class I, class F>
  static void each_word(const I* columns, int64_t n, F f) {
    if (n == 0) return;
    uint64_t word = uint64_t(columns[0]) / 64, mask = 0;
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t column = uint64_t(columns[i]);
      if (column / 64 != word) {
        f(word, mask);
        word = column / 64;
        mask = 0;
      }
      mask |= bit(column);
    }
    f(word, mask);
  }
  template <class I>
  void add(const I* columns, int64_t n) {
    each_word(columns, n, [this](uint64_t word, uint64_t mask) { set(word, mask); });
  }
  template <class I>
  void add_words(const I* words, const uint64_t* masks, int64_t n) {
    for (int64_t i = 0; i < n; ++i) set(uint64_t(words[i]), masks[i]);
  }
  // Writes the columns in order, returns the end, and clears the set. It may also write the element after the end: most
  // words hold one or two columns, and writing two is faster than a branch.
  template <class I>
  I* take(I* to) {
    for (uint64_t t = 0; t < top_words_; ++t) {
      each_bit(top_[t], t, [&](uint64_t m) {
        each_bit(middle_[m], m, [&](uint64_t word) {
          const uint64_t one = bits_[word], two = one & (one - 1), base = word * 64;
          bits_[word] = 0;
          to[0] = I(base + lowest(one));
          to[1] = I(base + lowest(two | bit(63)));
          to += two == 0 ? 1 : 2;
          for (uint64_t rest = two & (two - 1); rest != 0; rest &= rest - 1) *to++ = I(base + lowest(rest));
        });
      });
    }
    return to;
  }

 private:
  static uint64_t lowest(uint64_t bits) { return uint64_t(__builtin_ctzll(bits)); }
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
    for (uint64_t rest = word; rest != 0; rest &= rest - 1) f(index * 64 + lowest(rest));
    word = 0;
  }

  uint64_t top_words_;
  std::unique_ptr<uint64_t[]> bits_, middle_, top_;
};

}  // namespace tp::sparse
