// Segments of keys that are sorted on chip: where they are, and how their keys and payloads are loaded and stored.
#pragma once
#include "block/offsets.h"
#include "sort/onesweep/onesweep.h"

namespace tp::sort::device {

// The segments of one length class, or all rows.
struct Segments {
  const Range* ranges;
  const unsigned long long* count;
  int64_t capacity;  // of the list
  int64_t rows, n;   // rows of equal length, if there is no list
  bool early;        // whether the kernel may start while the launch before it is still running (short.cu)

  static Segments of_rows(const Args& args) { return {nullptr, nullptr, 0, args.rows, args.n, false}; }
  static Segments of_class(const Lists& lists, int c, bool early) {
    return {lists.ranges[c], lists.counts + c, lists.most[c], 0, 0, early};
  }
  int64_t most() const { return ranges ? capacity : rows; }
#ifdef __CUDACC__
  // A kernel that starts early has not waited for the list, so it does not read it from the L1 cache.
  TP_DEVICE int64_t size() const { return ranges ? tp::min(int64_t(__ldcg(count)), capacity) : rows; }
  TP_DEVICE Range at(int64_t i) const {
    return ranges ? Range{__ldcg(reinterpret_cast<const unsigned long long*>(ranges + i))} : Range::of(i * n, int(n));
  }
#endif
};

// Loads keys as their windows (core/key.h), and stores raw keys.
template <class W>
struct Moves {
  const W* keys;
  W* keys_out;
  const void* values;
  void* values_out;
  int value_bytes;
  KeyOrder<W> order;
  W flip;                  // if windows suffice, a key is its window with these bits flipped
  bool partial, floating;  // partial: the window is not the whole image; floating: several keys may share an image

  explicit Moves(const Args& args)
      : keys(static_cast<const W*>(args.keys)),
        keys_out(static_cast<W*>(args.keys_out)),
        values(args.values),
        values_out(args.values_out),
        value_bytes(args.values_out ? args.value_bytes : 0),
        order(args.order<W>()),
        flip(W(order.flip_positive ^ order.complement)),
        partial(args.begin_bit > 0 || args.end_bit < args.type.bits),
        floating(args.type.kind == KeyKind::floating) {}

  // Whether a key can be recovered from its window, and there is no payload. Then only windows have to be moved.
  bool windows_suffice() const { return !partial && !floating && !value_bytes; }

#ifdef __CUDACC__
  // The keys of a segment.
  TP_DEVICE const W* of(const Range& range) const { return (range.moved() ? keys_out : keys) + range.begin(); }
  TP_DEVICE W window(int64_t i) const { return order.window(keys[i]); }

  // The window of a raw key and the inverse, in one instruction each if windows suffice.
  template <bool suffice>
  TP_DEVICE W window_of(W raw) const {
    return suffice ? W(raw ^ flip) : order.window(raw);
  }
  template <bool suffice>
  TP_DEVICE W raw_of(W window) const {
    return suffice ? W(window ^ flip) : order.raw(window);
  }

  // Stores the key at from + index, whose window is given, to position `to`, with its payload.
  TP_DEVICE void put(int64_t to, int64_t from, int index, W window) const {
    if (keys_out) keys_out[to] = raw(from + index, window);
    if (value_bytes) put_value(to, from, index);
  }
  TP_DEVICE void copy(int64_t i) const {
    if (keys_out) keys_out[i] = keys[i];
    if (value_bytes) put_value(i, i, 0);
  }
  TP_DEVICE W raw(int64_t i, W window) const {
    const W image = W(window ^ order.complement);
    if (partial || (floating && (image == W(-1) || image == KeyOrder<W>::sign))) return keys[i];
    return order.raw(window);
  }

 private:
  template <class V>
  TP_DEVICE void move(int64_t to, int64_t from) const {
    static_cast<V*>(values_out)[to] = static_cast<const V*>(values)[from];
  }
  TP_DEVICE void put_value(int64_t to, int64_t from, int index) const {
    if (!values) {
      if (value_bytes == 8) {
        static_cast<int64_t*>(values_out)[to] = index;
      } else {
        static_cast<int32_t*>(values_out)[to] = index;
      }
    } else if (value_bytes == 4) {
      move<uint32_t>(to, from + index);
    } else if (value_bytes == 8) {
      move<uint64_t>(to, from + index);
    } else if (value_bytes == 1) {
      move<uint8_t>(to, from + index);
    } else if (value_bytes == 2) {
      move<uint16_t>(to, from + index);
    } else {
      move<Word16>(to, from + index);
    }
  }
#endif
};

}  // namespace tp::sort::device
