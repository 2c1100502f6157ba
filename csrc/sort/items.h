// What the textbook rungs sort: items of a raw key and its original index in the row. Values are moved only when the
// order is known, so each rung is compiled only for the four widths of a key.
#pragma once
#include "core/for_each.h"
#include "sort/sort.h"

namespace tp::sort {

template <class W>
struct Item {
  W key;
  int64_t index;
};

// The order of items. The original index breaks ties between equal keys, so no two items are equal in it.
template <class W>
struct ItemOrder {
  KeyOrder<W> keys;
  TP_HD bool less(const Item<W>& a, const Item<W>& b) const { return keys.less(a.key, b.key); }
  TP_HD bool before(const Item<W>& a, const Item<W>& b) const {
    const W x = keys.window(a.key), y = keys.window(b.key);
    return x < y || (x == y && a.index < b.index);
  }
};

// Items held in an array of keys and an array of original indices, both bound to a block.
template <class W, class Keys, class Indices>
struct ItemArray {
  Keys keys;
  Indices indices;
  bool indexed;

  TP_HD Item<W> get(int64_t i) const { return {W(keys[i]), indexed ? int64_t(indices[i]) : int64_t(0)}; }
  TP_HD void set(int64_t i, const Item<W>& x) const {
    keys[i] = x.key;
    if (indexed) indices[i] = x.index;
  }
};

// Items in memory. `indices` is null when only keys are sorted and the rung does not need original indices.
template <class W>
struct Items {
  W* keys;
  int64_t* indices;

  static Items allocate(Context& context, int64_t n, bool indexed) {
    return {context.workspace<W>(n), indexed ? context.workspace<int64_t>(n) : nullptr};
  }
  template <class Block>
  TP_HD auto bind(Block& block, const char* keys_name, const char* indices_name, int64_t n) const {
    const auto k = block.global(keys_name, keys, n);
    const auto p = block.global(indices_name, indices, n);
    return ItemArray<W, std::decay_t<decltype(k)>, std::decay_t<decltype(p)>>{k, p, indices != nullptr};
  }
};

// A tile of items in shared memory, of shared_bytes<W>(n) bytes.
template <class W, class Block>
TP_HD auto shared_items(Block& block, int n, bool indexed) {
  const auto p = block.template shared<int64_t>("indices", n);
  const auto k = block.template shared<W>("keys", n);
  return ItemArray<W, std::decay_t<decltype(k)>, std::decay_t<decltype(p)>>{k, p, indexed};
}
template <class W>
constexpr int64_t shared_bytes(int64_t n) {
  return n * int64_t(sizeof(W) + sizeof(int64_t));
}

// The rows of a sort, and the order of their items.
template <class W>
struct Rows {
  using Word = W;
  const char* rung;
  int64_t rows, n;
  ItemOrder<W> order;
  TP_HD int64_t size() const { return rows * n; }
};

// Conversion from the caller's keys to items, and from sorted items to the requested outputs (items.cu).
template <class W>
void load_items(const char* rung, const Args&, Context&, const Items<W>&);
template <class W>
void store_items(const char* rung, const Args&, Context&, const Items<W>&);

// Runs a rung. sort(rows, items, spare) sorts the items of each row and returns the array that holds the result, items
// or spare. `needs_indices` says that the rung needs original indices even if the caller does not.
template <class F>
void sort_items(const char* rung, const Args& args, Context& context, bool needs_indices, F sort) {
  with_key_word(args.type, [&](auto type) {
    using W = typename decltype(type)::type;
    const Rows<W> rows{rung, args.rows, args.n, {args.order<W>()}};
    const bool indexed = needs_indices || args.values_out;
    const auto items = Items<W>::allocate(context, rows.size(), indexed);
    const auto spare = Items<W>::allocate(context, rows.size(), indexed);
    load_items(rung, args, context, items);
    store_items(rung, args, context, sort(rows, items, spare));
  });
}

using simt::for_each;
using simt::launch_for_each;

constexpr int threads = simt::for_each_threads;

}  // namespace tp::sort
