// The order of keys in the form that the fastest rungs need. Integers have a type of their own, because their image is
// the raw word with some bits flipped.
#pragma once
#include "merge/merge.h"

namespace tp::merge {

template <class Word_>
struct IntegerOrder {
  using Word = Word_;
  Word flip;

  explicit IntegerOrder(const KeyOrder<Word>& order) : flip(Word(order.flip_positive ^ order.complement)) {}
  TP_HD Word image(Word raw) const { return Word(raw ^ flip); }
};

template <class Word_>
struct FloatOrder : KeyOrder<Word_> {
  using Word = Word_;
  explicit FloatOrder(const KeyOrder<Word>& order) : KeyOrder<Word>(order) {}
};

// Calls f(order) for the keys of the sequences.
template <class F>
void with_order(const Sequences& in, F f) {
  with_key_word(in.type, [&](auto type) {
    using Word = typename decltype(type)::type;
    const KeyOrder<Word> order(in.type, in.descending);
    if constexpr (sizeof(Word) > 1) {
      if (in.type.kind == KeyKind::floating) return f(FloatOrder<Word>(order));
    }
    f(IntegerOrder<Word>(order));
  });
}

}  // namespace tp::merge
