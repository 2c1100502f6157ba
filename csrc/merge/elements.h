// Rows of keys, and the values that move with them, bound to a block's arrays: what every rung of both ladders reads
// and writes, whatever the dtypes.
//
// Keys are raw words, so one kernel serves all dtypes of a width. Kernels only move values, so these are plain bytes,
// whose width is looked up where they are moved.
#pragma once
#include "core/simt.h"
#include "merge/merge.h"

namespace tp::merge {

struct Values {
  void* data;
  int64_t count;
  int bytes;
};

template <class Bytes, class Halves, class Words, class Longs>
struct BoundValues {
  Bytes by_1;
  Halves by_2;
  Words by_4;
  Longs by_8;
  int bytes;

  // this[to] = from[at].
  template <class From>
  TP_HD void take(int64_t to, const From& from, int64_t at) const {
    if (bytes == 1) {
      const uint8_t v = from.by_1[at];
      by_1[to] = v;
    } else if (bytes == 2) {
      const uint16_t v = from.by_2[at];
      by_2[to] = v;
    } else if (bytes == 4) {
      const uint32_t v = from.by_4[at];
      by_4[to] = v;
    } else if (bytes == 8) {
      const uint64_t v = from.by_8[at];
      by_8[to] = v;
    } else if (bytes == 16) {
      const uint64_t low = from.by_8[2 * at], high = from.by_8[2 * at + 1];
      by_8[2 * to] = low;
      by_8[2 * to + 1] = high;
    }
  }
};

template <class Block>
TP_HD auto bind_values(Block&& block, const char* name, const Values& v) {
  const auto array = [&](auto word, int width) {
    using Word = decltype(word);
    const bool used = (v.bytes > 8 ? 8 : v.bytes) == width;
    return block.global(name, used ? static_cast<Word*>(v.data) : nullptr, used ? v.count * v.bytes / width : 0);
  };
  const auto by_1 = array(uint8_t(), 1);
  const auto by_2 = array(uint16_t(), 2);
  const auto by_4 = array(uint32_t(), 4);
  const auto by_8 = array(uint64_t(), 8);
  return BoundValues<std::decay_t<decltype(by_1)>, std::decay_t<decltype(by_2)>, std::decay_t<decltype(by_4)>,
                     std::decay_t<decltype(by_8)>>{by_1, by_2, by_4, by_8, v.bytes};
}

// Two rows of keys.
template <class Word, class Array>
struct BoundKeys {
  KeyOrder<Word> order;
  Array a, b;
  int64_t m, n;

  // Whether A[i] comes after B[j] in the output.
  TP_HD bool later(int64_t row, int64_t i, int64_t j) const {
    const Word x = a[row * m + i], y = b[row * n + j];
    return order.image(x) > order.image(y);
  }
  TP_HD int64_t co_rank(int64_t row, int64_t k) const {
    k = tp::max(int64_t(0), tp::min(k, m + n));
    return tp::co_rank(k, m, n, [&](int64_t i, int64_t j) { return later(row, i, j); });
  }
};

template <class Word>
struct Keys {
  KeyOrder<Word> order;
  const Word *a, *b;
  int64_t rows, m, n;

  explicit Keys(const Sequences& s)
      : order(s.type, s.descending),
        a(static_cast<const Word*>(s.a)),
        b(static_cast<const Word*>(s.b)),
        rows(s.rows),
        m(s.m),
        n(s.n) {}

  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto x = block.global("a", a, rows * m);
    const auto y = block.global("b", b, rows * n);
    return BoundKeys<Word, std::decay_t<decltype(x)>>{order, x, y, m, n};
  }
};

// A merge: where its inputs are, and where its outputs go.
template <class In, class Out, class V>
struct BoundMerge {
  In in;
  Out keys;
  V a_values, b_values, values;

  TP_HD int64_t total() const { return in.m + in.n; }
  // Stores a key of A or B, with its value, as output k of the row.
  template <class Word>
  TP_HD void take_a(int64_t row, int64_t i, int64_t k, Word key) const {
    keys[row * total() + k] = key;
    values.take(row * total() + k, a_values, row * in.m + i);
  }
  template <class Word>
  TP_HD void take_b(int64_t row, int64_t j, int64_t k, Word key) const {
    keys[row * total() + k] = key;
    values.take(row * total() + k, b_values, row * in.n + j);
  }
};

template <class Word_>
struct Merge {
  using Word = Word_;
  Keys<Word> in;
  Word* keys;
  Values a_values, b_values, values;

  explicit Merge(const Args& args)
      : in(args.in),
        keys(static_cast<Word*>(args.keys)),
        a_values{const_cast<void*>(args.a_values), in.rows * in.m, args.value_bytes},
        b_values{const_cast<void*>(args.b_values), in.rows * in.n, args.value_bytes},
        values{args.values, in.rows * total(), args.value_bytes} {}

  TP_HD int64_t total() const { return in.m + in.n; }

  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto x = in.bind(block);
    const auto out = block.global("keys", keys, in.rows * total());
    const auto va = bind_values(block, "a_values", a_values);
    return BoundMerge<std::decay_t<decltype(x)>, std::decay_t<decltype(out)>, std::decay_t<decltype(va)>>{
        x, out, va, bind_values(block, "b_values", b_values), bind_values(block, "values", values)};
  }
};

// Calls f(Merge<Word>) for the width of the keys.
template <class F>
void with_merge(const Args& args, F f) {
  with_key_word(args.in.type, [&](auto type) { f(Merge<typename decltype(type)::type>(args)); });
}

// Merged values that unmerge distributes back to A and B.
template <class V>
struct BoundUnmerge {
  V merged, a, b;
  int64_t m, n;

  TP_HD void give_a(int64_t row, int64_t i, int64_t k) const { a.take(row * m + i, merged, row * (m + n) + k); }
  TP_HD void give_b(int64_t row, int64_t j, int64_t k) const { b.take(row * n + j, merged, row * (m + n) + k); }
};

struct Unmerge {
  Values merged, a, b;
  int64_t m, n;

  explicit Unmerge(const co_rank_ladder::Args& args)
      : merged{const_cast<void*>(args.merged), args.in.rows * (args.in.m + args.in.n), args.value_bytes},
        a{args.a_out, args.in.rows * args.in.m, args.value_bytes},
        b{args.b_out, args.in.rows * args.in.n, args.value_bytes},
        m(args.in.m),
        n(args.in.n) {}

  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto from = bind_values(block, "merged", merged);
    return BoundUnmerge<std::decay_t<decltype(from)>>{from, bind_values(block, "a_values", a),
                                                      bind_values(block, "b_values", b), m, n};
  }
};

// How many of `count` outputs come from A, if they are between the co-ranks i and next. The result is clamped, because
// co-ranks may be anywhere if the input is not sorted.
TP_HD inline int64_t share_of_a(int64_t i, int64_t next, int64_t count) {
  return tp::max(int64_t(0), tp::min(next - i, count));
}

}  // namespace tp::merge
