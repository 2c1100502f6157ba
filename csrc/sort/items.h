// What the textbook rungs move: a raw key and the place in its row that it came from. Values stay where they are until
// the order is known, so a rung is compiled for the four widths of a key and for nothing else.
#pragma once
#include "core/simt.h"
#include "sort/sort.h"

namespace tp::sort {

constexpr int64_t max_grid = 2147483647;

template <class W>
struct Item {
  W key;
  int64_t place;
};

// The order of items. Places tell equal keys apart, so that no two items are equal.
template <class W>
struct ItemOrder {
  KeyOrder<W> keys;
  TP_HD bool less(const Item<W>& a, const Item<W>& b) const { return keys.less(a.key, b.key); }
  TP_HD bool before(const Item<W>& a, const Item<W>& b) const {
    const W x = keys.window(a.key), y = keys.window(b.key);
    return x < y || (x == y && a.place < b.place);
  }
};

// Items in an array of keys and an array of places, bound to a block.
template <class W, class Keys, class Places>
struct ItemArray {
  Keys keys;
  Places places;
  bool placed;

  TP_HD Item<W> get(int64_t i) const { return {W(keys[i]), placed ? int64_t(places[i]) : int64_t(0)}; }
  TP_HD void set(int64_t i, const Item<W>& x) const {
    keys[i] = x.key;
    if (placed) places[i] = x.place;
  }
};

// Items in memory; without places where only keys are sorted and the rung needs none.
template <class W>
struct Items {
  W* keys;
  int64_t* places;

  static Items allocate(Context& context, int64_t n, bool placed) {
    return {context.workspace<W>(n), placed ? context.workspace<int64_t>(n) : nullptr};
  }
  template <class Block>
  TP_HD auto bind(Block& block, const char* keys_name, const char* places_name, int64_t n) const {
    const auto k = block.global(keys_name, keys, n);
    const auto p = block.global(places_name, places, n);
    return ItemArray<W, std::decay_t<decltype(k)>, std::decay_t<decltype(p)>>{k, p, places != nullptr};
  }
};

// A tile of items in shared memory: shared_bytes<W>(n) of it.
template <class W, class Block>
TP_HD auto shared_items(Block& block, int n, bool placed) {
  const auto p = block.template shared<int64_t>("places", n);
  const auto k = block.template shared<W>("keys", n);
  return ItemArray<W, std::decay_t<decltype(k)>, std::decay_t<decltype(p)>>{k, p, placed};
}
template <class W>
constexpr int64_t shared_bytes(int64_t n) {
  return n * int64_t(sizeof(W) + sizeof(int64_t));
}

// How the items of a sort are laid out, and how they compare.
template <class W>
struct Rows {
  using Word = W;
  const char* rung;
  int64_t rows, n;
  ItemOrder<W> order;
  TP_HD int64_t size() const { return rows * n; }
};

// From the caller's keys to items, and from sorted items to what the caller asked for. items.cu.
template <class W>
void load_items(const char* rung, const Args&, Context&, const Items<W>&);
template <class W>
void store_items(const char* rung, const Args&, Context&, const Items<W>&);

// A rung: sort(rows, items, spare) orders each row's items, in either of the two, and returns which.
// `places`: it needs them whatever the caller wants.
template <class F>
void sort_items(const char* rung, const Args& args, Context& context, bool places, F sort) {
  with_key_word(args.type, [&](auto type) {
    using W = typename decltype(type)::type;
    const Rows<W> rows{rung, args.rows, args.n, {args.order<W>()}};
    const bool placed = places || args.values_out;
    const auto items = Items<W>::allocate(context, rows.size(), placed);
    const auto spare = Items<W>::allocate(context, rows.size(), placed);
    load_items(rung, args, context, items);
    store_items(rung, args, context, sort(rows, items, spare));
  });
}

// f(lane's element) in one phase: for launches that share nothing, n elements by blocks of `threads`.
constexpr int threads = 256;

template <class Block, class F>
TP_HD void for_each(Block& block, const char* phase, int64_t n, F f) {
  for (int64_t first = block.index().x * threads; first < n; first += block.grid().x * threads) {
    block.phase(phase, [&](int t) {
      if (first + t < n) f(first + t);
    });
  }
}

template <class Kernel>
void launch_for_each(Context& context, const char* name, int64_t n, const Kernel& kernel) {
  simt::launch(context, name, {tp::min(ceil_div(n, int64_t(threads)), max_grid)}, threads, 0, kernel);
}

}  // namespace tp::sort
