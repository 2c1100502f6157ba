// What the sort of the CPU moves: a word for each key, by whose upper bits the keys compare, and perhaps a payload.
//
// A kind of items says how keys become words (load) and how sorted words become results (store). `row` is where the row
// of the keys begins; positions are counted from there. Words whose lower bits are positions are all different, so they
// may be sorted by algorithms that are not stable, such as networks.
#pragma once
#include <type_traits>

#include "block/on_vectors.h"
#include "core/context.h"
#include "sort/sort.h"

namespace tp::sort::host {

struct NoPayload {};  // of items that are a word only

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

// Writes the payloads of keys begin .. begin + n of the result. Key begin + i was at position(i) of its row.
template <class Position>
void store_payloads(const Args& args, int64_t begin, int64_t n, int64_t row, Position position) {
  with_word(args.value_bytes, [&](auto type) {
    using V = typename decltype(type)::type;
    V* to = static_cast<V*>(args.values_out) + begin;
    if (args.values) {
      const V* from = static_cast<const V*>(args.values) + row;
      for (int64_t i = 0; i < n; ++i) to[i] = from[position(i)];
    } else if constexpr (std::is_integral<V>::value) {
      const int64_t first = args.offsets ? row : 0;
      TP_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) to[i] = V(first + int64_t(position(i)));
    }
  });
}

// The images of keys, without payload. Keys can be restored from their images.
template <class Key>
class KeysAlone {
 public:
  using Word = Key;
  using Lines = Buffer<Word, NoPayload>;
  explicit KeysAlone(const Args& args) : args_(&args), order_(args.order<Key>()) {}

  // The bits of a word by which keys compare.
  Word window() const { return Word(order_.mask << order_.begin); }
  // Whether words may be compared by all their bits.
  bool whole() const { return args_->begin_bit == 0 && args_->end_bit == args_->type.bits; }
  // The greatest number of words that a network sorts. A network goes through its words once more whenever their number
  // doubles, so from here on digits cost less.
  int64_t most_in_network() const { return !whole() ? 0 : sizeof(Key) == 8 ? 1 << 14 : sizeof(Key) == 4 ? 1 << 16 : 0; }
  // Where the sorted words of all keys are put before store().
  Lines sorted(Context&) const { return {static_cast<Key*>(args_->keys_out), nullptr}; }

  // Makes the words of keys begin .. begin + n.
  void load(int64_t begin, int64_t n, int64_t, const Lines& to) const {
    const KeyOrder<Key> order = order_;
    const Key* from = static_cast<const Key*>(args_->keys) + begin;
    Key* keys = to.keys;
    TP_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) keys[i] = order.image(from[i]);
  }
  // Writes the results begin .. begin + n.
  void store(const Lines& from, int64_t begin, int64_t n, int64_t) const {
    const KeyOrder<Key> order = order_;
    Key* to = static_cast<Key*>(args_->keys_out) + begin;
    TP_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) to[i] = order.raw(from.keys[i]);
  }

 private:
  const Args* args_;
  KeyOrder<Key> order_;
};

// Words that hold the image of a key in their upper bits. The bits below hold its position or, if `positions` is false,
// its value, of four bytes. Keys are read again by their positions if they cannot be restored from their images.
template <class Key, class Word_>
class Packed {
 public:
  using Word = Word_;
  using Lines = Buffer<Word, NoPayload>;
  static constexpr int below = 8 * int(sizeof(Word) - sizeof(Key));  // bits below the image
  static constexpr int64_t most_positions = int64_t(1) << tp::min(below, 62);
  static_assert(below > 0, "the bits below the image hold the payload");

  Packed(const Args& args, bool lossy, bool positions)
      : args_(&args),
        order_(args.order<Key>()),
        kept_(positions ? Key(order_.mask << order_.begin) : Key(-1)),
        restores_(!lossy && (!positions || order_.mask == KeyOrder<Key>(args.type).mask)),
        positions_(positions) {}

  Word window() const { return Word(Word(Key(order_.mask << order_.begin)) << below); }
  bool whole() const { return positions_; }
  int64_t most_in_network() const { return !positions_ ? 0 : sizeof(Word) == 8 ? 1 << 10 : 1 << 16; }
  Lines sorted(Context& context) const {
    const bool in_place = args_->positions() && args_->value_bytes == int(sizeof(Word));
    return {in_place ? static_cast<Word*>(args_->values_out) : context.workspace<Word>(args_->size()), nullptr};
  }

  void load(int64_t begin, int64_t n, int64_t row, const Lines& to) const {
    const KeyOrder<Key> order = order_;
    const Key* from = static_cast<const Key*>(args_->keys) + begin;
    const auto upper = [order, kept = kept_](Key key) { return Word(Word(Key(order.image(key) & kept)) << below); };
    Word* words = to.keys;
    if (positions_) {
      const Word first = Word(begin - row);
      TP_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) words[i] = Word(upper(from[i]) | Word(first + Word(i)));
    } else {
      const auto* values = static_cast<const uint32_t*>(args_->values) + begin;
      TP_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) words[i] = Word(upper(from[i]) | Word(values[i]));
    }
  }

  void store(const Lines& from, int64_t begin, int64_t n, int64_t row) const {
    const KeyOrder<Key> order = order_;
    const Word* words = from.keys;
    const auto payload = [=](int64_t i) { return Word(words[i] & Word((Word(1) << below) - 1)); };
    if (args_->keys_out) {
      Key* to = static_cast<Key*>(args_->keys_out) + begin;
      const Key* unsorted = static_cast<const Key*>(args_->keys) + row;
      if (restores_) {
        TP_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) to[i] = order.raw(Key(words[i] >> below));
      } else {
        for (int64_t i = 0; i < n; ++i) to[i] = unsorted[payload(i)];
      }
    }
    if (positions_) {
      if (args_->values_out) store_payloads(*args_, begin, n, row, payload);
    } else {
      auto* to = static_cast<uint32_t*>(args_->values_out) + begin;
      TP_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) to[i] = uint32_t(payload(i));
    }
  }

 private:
  const Args* args_;
  KeyOrder<Key> order_;
  Key kept_;  // the bits of an image that a word holds
  bool restores_, positions_;
};

// The images of keys, beside payloads in an array of their own: values or, if `positions`, positions.
template <class Key, class Payload>
class Beside {
 public:
  using Word = Key;
  using Lines = Buffer<Word, Payload>;

  Beside(const Args& args, bool lossy, bool positions)
      : args_(&args),
        order_(args.order<Key>()),
        restores_(!lossy),
        positions_(positions),
        in_place_(args.values_out &&
                  (!positions || (args.positions() && !args.offsets && args.value_bytes == int(sizeof(Payload))))) {}

  Word window() const { return Word(order_.mask << order_.begin); }
  int64_t most_in_network() const { return 0; }
  Lines sorted(Context& context) const {
    const int64_t size = args_->size();
    return {args_->keys_out && restores_ ? static_cast<Key*>(args_->keys_out) : context.workspace<Key>(size),
            in_place_ ? static_cast<Payload*>(args_->values_out) : context.workspace<Payload>(size)};
  }

  void load(int64_t begin, int64_t n, int64_t row, const Lines& to) const {
    const KeyOrder<Key> order = order_;
    const Key* from = static_cast<const Key*>(args_->keys) + begin;
    Key* keys = to.keys;
    TP_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) keys[i] = order.image(from[i]);
    if (positions_) {
      for (int64_t i = 0; i < n; ++i) to.payloads[i] = Payload(begin - row + i);
    } else {
      std::copy_n(static_cast<const Payload*>(args_->values) + begin, n, to.payloads);
    }
  }

  void store(const Lines& from, int64_t begin, int64_t n, int64_t row) const {
    const KeyOrder<Key> order = order_;
    if (args_->keys_out) {
      Key* to = static_cast<Key*>(args_->keys_out) + begin;
      const Key* unsorted = static_cast<const Key*>(args_->keys) + row;
      if (restores_) {
        TP_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) to[i] = order.raw(from.keys[i]);
      } else {
        for (int64_t i = 0; i < n; ++i) to[i] = unsorted[from.payloads[i]];
      }
    }
    if (!args_->values_out || in_place_) return;
    store_payloads(*args_, begin, n, row, [=, payloads = from.payloads](int64_t i) { return payloads[i]; });
  }

 private:
  const Args* args_;
  KeyOrder<Key> order_;
  bool restores_, positions_;
  bool in_place_;  // whether the sorted payloads are the result
};

}  // namespace tp::sort::host
