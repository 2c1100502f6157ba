// The operands of group_atomics.cu as words that atomics combine: encode() makes a word of a value, and decode() a
// result of a word.
#pragma once
#include "core/atomic.h"
#include "segmented/elements.h"
#include "segmented/exact_sum.h"

namespace tp::segmented {

// How many words a cell has, and into which a value is combined, where there is only one.
struct OneWord {
  static constexpr bool binned = false;
  TP_DEVICE int words() const { return 1; }
  template <class T>
  TP_DEVICE int word_of(T) const {
    return 0;
  }
};

template <class Word>
constexpr Word greatest = std::numeric_limits<Word>::max();

// Integers that compare as the values do: for floats, their bits, of which those other than the sign are flipped if the
// sign is set; for a minimum, all bits are flipped. NaN is the greatest in any case.
template <class T>
struct Extremum : OneWord {
  using Input = T;
  using Output = T;
  using Word = std::conditional_t<sizeof(T) == 8, int64_t, int>;
  using Op = Max<Word>;
  static constexpr bool one_way = true, decodes = true, ties = is_floating<T>;
  Word flip;

  explicit Extremum(OpId op) : flip(op == OpId::min ? Word(-1) : Word(0)) {}
  TP_DEVICE Word identity() const { return encode(T(flip ? detail::highest<A>() : detail::lowest<A>())); }
  TP_DEVICE Word encode(T x) const {
    const A value = A(x);
    if constexpr (ties) {
      if (value != value) return greatest<Word>;
      if (value == A(0)) return flip;
      const Word bits = bits_of(value);
      return (bits < 0 ? bits ^ greatest<Word> : bits) ^ flip;
    } else {
      return Word(value) ^ flip;
    }
  }
  TP_DEVICE T decode(Word word) const {
    if constexpr (ties) {
      if (word == greatest<Word>) return T(std::numeric_limits<A>::quiet_NaN());
      word ^= flip;
      if (word < 0) word ^= greatest<Word>;
      A value;
      memcpy(&value, &word, sizeof value);
      return T(value);
    } else {
      return T(A(word ^ flip));
    }
  }
  // Whether other values, with other bits, are equal to this one.
  TP_DEVICE static bool can_tie(T x) { return A(x) == A(0) || A(x) != A(x); }
  // Whether decode() does not give this value back.
  TP_DEVICE static bool is_lost(T x) {
    const A value = A(x);
    return value != value ? bits_of(value) != bits_of(std::numeric_limits<A>::quiet_NaN())
                          : value == A(0) && bits_of(value) != 0;
  }

 private:
  using A = acc_t<T>;
  TP_DEVICE static Word bits_of(A value) {
    Word bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
  }
};

// Sums and products of integers, modulo 2^64.
template <class T, template <class> class M>
struct Wrapping : OneWord {
  using Input = T;
  using Output = int64_t;
  using Word = int64_t;
  using Op = M<Word>;
  static constexpr bool one_way = false, decodes = false, ties = false;

  TP_DEVICE Word identity() const { return Op::identity(); }
  TP_DEVICE Word encode(T x) const { return Word(acc_t<T>(x)); }
};

template <class T, template <class> class M>
struct Bits : OneWord {
  using Input = T;
  using Output = T;
  using Word = std::conditional_t<sizeof(T) == 8, int64_t, int>;
  using Op = M<Word>;
  static constexpr bool one_way = Op::id != OpId::bitwise_xor, decodes = sizeof(T) < sizeof(Word), ties = false;

  TP_DEVICE Word identity() const { return Op::identity(); }
  TP_DEVICE Word encode(T x) const { return Word(x); }
  TP_DEVICE T decode(Word word) const { return T(word); }
};

// Sums of floats, with several words per cell. How the values use them is known on the device only, where ready() finds
// it.
template <class T>
struct Exact {
  using Input = T;
  using Output = T;
  using Word = int64_t;
  using Op = Sum<Word>;
  static constexpr bool binned = true, one_way = false, decodes = true, ties = false;
  int width;
  Extent* extent;

  struct Ready : Bins<T> {
    using Bins<T>::Bins;
    TP_DEVICE static Word identity() { return 0; }
    TP_DEVICE Word encode(T x) const { return this->operand(x); }
  };
};

template <class E>
TP_DEVICE const E& ready(const E& e) {
  return e;
}
template <class T>
TP_DEVICE typename Exact<T>::Ready ready(const Exact<T>& e) {
  return {e.width, *e.extent};
}

}  // namespace tp::segmented
