// Sorting networks (§13.8: Batcher 1968): comparisons do not depend on the data, so every step is one parallel phase.
//
// Every comparator moves the smaller item to the lower index. A row whose length is not a power of two therefore
// behaves as if it were padded with the largest items, and comparators that reach beyond its end are skipped. Networks
// are not stable by themselves, so the original index is a second key.
//
// A Network says which pair comparator i of a step exchanges. A network on groups of `size` items takes the strides
// size / 2, size / 4, ..., 1.
#pragma once
#include "sort/items.h"

namespace tp::sort {

struct Pair {
  int64_t low, high;
};

constexpr int network_tile = 1024;

template <class Array, class Order>
TP_HD void exchange(const Array& items, const Pair& pair, const Order& order) {
  const auto a = items.get(pair.low), b = items.get(pair.high);
  if (!order.before(b, a)) return;
  items.set(pair.low, b);
  items.set(pair.high, a);
}

// One step over all rows, in a launch of its own because its pairs are in different tiles.
template <class W, class Network>
struct Step {
  Rows<W> rows;
  Items<W> items;
  int64_t size, stride, comparators;  // per row

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = items.bind(block, "items", "indices", rows.size());
    for_each(block, "exchange", rows.rows * comparators, [&](int64_t i) {
      const int64_t base = i / comparators * rows.n;
      const Pair pair = Network::pair(i % comparators, size, stride);
      if (pair.high < rows.n) exchange(x, {base + pair.low, base + pair.high}, rows.order);
    });
  }
};

// The steps for group sizes `from` to `to` whose pairs are within a tile, in shared memory.
template <class W, class Network>
struct TileSteps {
  Rows<W> rows;
  Items<W> items;
  int64_t from, to;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = items.bind(block, "items", "indices", rows.size());
    const auto s = shared_items<W>(block, network_tile, x.indexed);
    const int64_t tiles = ceil_div(rows.n, int64_t(network_tile));
    for (int64_t id = block.index().x; id < rows.rows * tiles; id += block.grid().x) {
      const int64_t first = id % tiles * network_tile, base = id / tiles * rows.n + first;
      const int count = int(tp::min(int64_t(network_tile), rows.n - first));
      block.phase("load", [&](int t) {
        for (int i = t; i < count; i += threads) s.set(i, x.get(base + i));
      });
      for (int64_t size = from; size <= to; size *= 2) {
        for (int64_t stride = tp::min(size, int64_t(network_tile)) / 2; stride > 0; stride /= 2) {
          block.phase("exchange", [&](int t) {
            for (int i = t; i < network_tile / 2; i += threads) {
              const Pair pair = Network::pair(i, size, stride);
              if (pair.high < count) exchange(s, pair, rows.order);
            }
          });
        }
      }
      block.phase("store", [&](int t) {
        for (int i = t; i < count; i += threads) x.set(base + i, s.get(i));
      });
    }
  }
};

// A rung that sorts by a network: steps for growing group sizes, until one group holds the whole row.
template <class Network>
void sort_by_network(const char* rung, const Args& args, Context& context) {
  sort_items(rung, args, context, true, [&](const auto& rows, auto items, auto) {
    using W = typename std::decay_t<decltype(rows)>::Word;
    const auto in_tiles = [&](int64_t from, int64_t to) {
      const simt::Dim grid{tp::min(rows.rows * ceil_div(rows.n, int64_t(network_tile)), max_grid)};
      simt::launch(context, rung, grid, threads, shared_bytes<W>(network_tile),
                   TileSteps<W, Network>{rows, items, from, to});
    };
    int64_t whole = 1;
    while (whole < rows.n) whole *= 2;
    in_tiles(2, tp::min(whole, int64_t(network_tile)));
    for (int64_t size = 2 * network_tile; size <= whole; size *= 2) {
      const int64_t comparators = ceil_div(rows.n, size) * (size / 2);
      for (int64_t stride = size / 2; stride > 0; stride /= 2) {
        if (Network::local && stride < network_tile) {
          in_tiles(size, size);
          break;
        }
        launch_for_each(context, rung, rows.rows * comparators,
                        Step<W, Network>{rows, items, size, stride, comparators});
      }
    }
    return items;
  });
}

}  // namespace tp::sort
