// Sorting a tile, and merging sorted runs, by one block (§13.7). Merge sort does this over the whole grid, and sample
// sort in each bucket.
//
// A merge is divided by its output. co_rank (Fig. 12.5) says how many of the first k outputs come from the first run,
// so every block, and every thread within it, finds the inputs of its own outputs. Of equal keys, those of the first
// run come first, so the merge is stable.
#pragma once
#include "sort/items.h"

namespace tp::sort {

constexpr int items_per_thread = 4, merge_tile = threads * items_per_thread;  // outputs per block

// Returns how many of the first k outputs come from `a`, which has m sorted items; the others come from `b`, which has
// n.
template <class A, class B, class Order, class I>
TP_HD I co_rank(I k, const A& a, I m, const B& b, I n, const Order& order) {
  I low = tp::max(I(0), I(k - n)), high = tp::min(k, m);
  while (low < high) {  // find the first i for which a[i] comes after b[k - 1 - i]
    const I i = low + (high - low) / 2;
    if (order.less(b(k - 1 - i), a(i))) {
      high = i;
    } else {
      low = i + 1;
    }
  }
  return low;
}

template <class W>
struct ThreadItems {  // the outputs of a thread, kept from one phase to the next
  Item<W> items[items_per_thread];
};

// Returns the outputs from k on, at most `items_per_thread`, of the merge of s[begin, middle) and s[middle, end).
template <class W, class Tile, class Order>
TP_HD ThreadItems<W> merge_thread_items(const Tile& s, int begin, int middle, int end, int k, const Order& order) {
  ThreadItems<W> out;
  const auto a = [&](int i) { return s.get(begin + i); };
  const auto b = [&](int i) { return s.get(middle + i); };
  const int m = middle - begin, n = end - middle;
  int i = co_rank(k, a, m, b, n, order), j = k - i;
  for (int x = 0; x < items_per_thread; ++x) {
    if (i + j >= m + n) break;
    const bool from_a = j >= n || (i < m && !order.less(b(j), a(i)));
    out.items[x] = from_a ? a(i++) : b(j++);
  }
  return out;
}

// Sorts s[0, count), stably: each thread sorts its own items by insertion, then runs are merged in pairs until one is
// left.
template <class W, class Block, class Tile, class Order>
TP_HD void sort_tile(Block& block, const Tile& s, int count, const Order& order) {
  block.phase("insertion", [&](int t) {
    for (int i = t * items_per_thread + 1; i < tp::min((t + 1) * items_per_thread, count); ++i) {
      const Item<W> x = s.get(i);
      int j = i;
      for (; j > t * items_per_thread && order.less(x, s.get(j - 1)); --j) s.set(j, s.get(j - 1));
      s.set(j, x);
    }
  });
  auto merged = block.template per_lane<ThreadItems<W>>("merged");
  for (int run = items_per_thread; run < count; run *= 2) {
    block.phase("merge", [&](int t) {
      const int k = t * items_per_thread, begin = k / (2 * run) * (2 * run);
      if (k < count)
        merged[t] = merge_thread_items<W>(s, begin, tp::min(begin + run, count), tp::min(begin + 2 * run, count),
                                          k - begin, order);
    });
    block.phase("write", [&](int t) {
      for (int x = 0; x < items_per_thread && t * items_per_thread + x < count; ++x)
        s.set(t * items_per_thread + x, merged[t].items[x]);
    });
  }
}

// Computes the outputs [first, first + merge_tile) of merging runs of `run` items in from[base, base + n) in pairs.
// `run` is a multiple of the tile, so the outputs come from a single pair; the co-ranks at both ends tell which inputs
// to load into shared memory.
template <class W, class Block, class Array, class Tile, class Order>
TP_HD void merge_to_tile(Block& block, const Array& from, const Array& to, const Tile& s, int64_t base, int64_t n,
                         int64_t run, int64_t first, const Order& order) {
  const int64_t pair = first / (2 * run) * (2 * run), middle = tp::min(pair + run, n), end = tp::min(pair + 2 * run, n);
  const auto a = [&](int64_t i) { return from.get(base + pair + i); };
  const auto b = [&](int64_t i) { return from.get(base + middle + i); };
  const int64_t k = first - pair, next = tp::min(k + merge_tile, end - pair);
  const auto split = [&](int64_t at) { return co_rank(at, a, middle - pair, b, end - middle, order); };
  const int64_t i = block.uniform("from", [&] { return split(k); });
  const int64_t i_next = block.uniform("to", [&] { return split(next); });
  const int left = int(i_next - i), count = int(next - k);
  block.phase("load", [&](int t) {
    for (int x = t; x < count; x += threads) s.set(x, x < left ? a(i + x) : b(k - i + x - left));
  });
  block.phase("merge", [&](int t) {
    if (t * items_per_thread >= count) return;
    const ThreadItems<W> merged = merge_thread_items<W>(s, 0, left, count, t * items_per_thread, order);
    for (int x = 0; x < items_per_thread && t * items_per_thread + x < count; ++x)
      to.set(base + first + t * items_per_thread + x, merged.items[x]);
  });
}

// Sorts the tile [first, first + merge_tile) of from[base, base + n), and stores it at the same positions of `to`,
// which may be `from`.
template <class W, class Block, class Array, class Tile, class Order>
TP_HD void sort_to_tile(Block& block, const Array& from, const Array& to, const Tile& s, int64_t base, int64_t n,
                        int64_t first, const Order& order) {
  const int count = int(tp::min(int64_t(merge_tile), n - first));
  block.phase("load", [&](int t) {
    for (int i = t; i < count; i += threads) s.set(i, from.get(base + first + i));
  });
  sort_tile<W>(block, s, count, order);
  block.phase("store", [&](int t) {
    for (int i = t; i < count; i += threads) to.set(base + first + i, s.get(i));
  });
}

}  // namespace tp::sort
