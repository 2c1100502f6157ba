// The order of keys of any dtype. A key is a raw word of 1, 2, 4 or 8 bytes. Its *image* is an unsigned word of the
// same width that compares as the key does: the image of an unsigned integer is itself; of a signed integer, its bits
// with the sign bit flipped; of a float, its bits with the sign bit set if it is positive, and all bits complemented if
// it is negative. -0.0 has the image of +0.0, and every NaN, of either sign, has the greatest image, all ones.
// Descending order complements the image. Two different keys may have the same image, so algorithms move raw words and
// compare images.
//
// Keys may be compared by a window of bits [begin, end) of their images, where bit 0 is the least significant; keys
// whose windows are equal count as equal.
#pragma once
#include "core/dtype.h"

namespace tp {

enum class KeyKind : int8_t { unsigned_integer, signed_integer, floating };

struct KeyType {
  KeyKind kind;
  int8_t bytes;       // 1, 2, 4 or 8
  int8_t bits;        // of the image: 8 * bytes, or 1 for bool, whose bytes must be 0 or 1 here
  uint64_t infinity;  // for floats, the bits of +infinity; all greater magnitudes are NaN
};

// How keys compare: by their images, in ascending order.
template <class Word>
struct KeyOrder {
  static_assert(Word(-1) > Word(0), "a raw key is an unsigned word");
  static constexpr Word sign = Word(Word(1) << (8 * sizeof(Word) - 1));
  Word flip_positive, flip_negative, infinity, at_sign, complement, mask;
  int begin;

  explicit KeyOrder(const KeyType& type, bool descending = false) : KeyOrder(type, descending, 0, type.bits) {}
  KeyOrder(const KeyType& type, bool descending, int begin_bit, int end_bit)
      : flip_positive(type.kind == KeyKind::unsigned_integer ? Word(0) : sign),
        flip_negative(type.kind == KeyKind::floating ? Word(-1) : flip_positive),
        infinity(type.kind == KeyKind::floating ? Word(type.infinity) : Word(-1)),
        at_sign(type.kind == KeyKind::signed_integer ? Word(0) : sign),
        complement(descending ? ones(type.bits) : Word(0)),
        mask(ones(end_bit - begin_bit)),
        begin(end_bit > begin_bit ? begin_bit : 0) {}

  TP_HD Word image(Word raw) const {
    Word x = Word(raw ^ (raw & sign ? flip_negative : flip_positive));
    if (Word(raw & ~sign) > infinity) x = Word(-1);
    if (raw == sign) x = at_sign;
    return Word(x ^ complement);
  }
  // The inverse of image(), except for lossy keys: -0.0 and NaN share their image with other keys.
  TP_HD Word raw(Word image) const {
    const Word x = Word(image ^ complement);
    return Word(x ^ (Word(x ^ flip_positive) & sign ? flip_negative : flip_positive));
  }
  TP_HD bool lossy(Word raw) const {
    return Word(raw & ~sign) > infinity || (raw == sign && flip_negative != flip_positive);
  }
  // The bits of the window, shifted to the low end.
  TP_HD Word window(Word raw) const { return Word(Word(image(raw) >> begin) & mask); }
  TP_HD bool less(Word a, Word b) const { return window(a) < window(b); }

 private:
  static Word ones(int bits) { return bits == 0 ? Word(0) : Word(Word(-1) >> (8 * int(sizeof(Word)) - bits)); }
};

struct Word16 {
  uint64_t low, high;
};

// Calls f(Type<W>{}) with the word type W of that many bytes: uint8_t, uint16_t, uint32_t, uint64_t, or Word16 for
// values that are only moved.
template <class F>
auto with_word(int bytes, F&& f) {
  switch (bytes) {
    case 1:
      return f(Type<uint8_t>{});
    case 2:
      return f(Type<uint16_t>{});
    case 4:
      return f(Type<uint32_t>{});
    case 8:
      return f(Type<uint64_t>{});
    default:
      return f(Type<Word16>{});
  }
}

// As with_word, for the raw word of a key, which has at most 8 bytes.
template <class F>
void with_key_word(const KeyType& type, F&& f) {
  with_word(type.bytes, [&](auto word) {
    if constexpr (sizeof(typename decltype(word)::type) <= 8) {
      f(word);
    } else {
      fail(ErrorKind::type, "a key has 1, 2, 4 or 8 bytes, got ", int(type.bytes));
    }
  });
}

}  // namespace tp
