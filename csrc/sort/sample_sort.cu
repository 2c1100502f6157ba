// Sample sort (§13.8): one partition does most of the work; after it, the sorted buckets only have to be concatenated.
//
// A sample of each row is sorted, and equally spaced items of it are the splitters. Bucket b holds the items after
// splitter b - 1 up to and including splitter b. Items with equal keys are compared by original index, so a row of
// equal keys splits as evenly as any other row. The sample has four times as many items as there are buckets, which
// makes the buckets balanced with high probability. The result is correct in any case, because a block can merge-sort a
// bucket of any size.
#include "sort/merging.h"
#include "sort/partition.h"

namespace tp::sort {
namespace {

constexpr int bucket_bits = 8, sample_size = merge_tile;

// Returns the index of item j of the sample: the row is divided into sample_size equal parts, and a hash picks one item
// of part j.
TP_HD inline int64_t sampled(int64_t j, int64_t n) {
  const int64_t begin = j * (n / sample_size), length = n / sample_size;
  const uint64_t hash = (uint64_t(j) + 1) * 0x9e3779b97f4a7c15u;
  return begin + int64_t((hash >> 32) % uint64_t(length));
}

template <class W>
struct Sample {
  Rows<W> rows;
  Items<W> items, samples;  // [rows, sample_size], sorted

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto in = items.bind(block, "items", "indices", rows.size());
    const auto out = samples.bind(block, "samples", "sampled indices", rows.rows * sample_size);
    const auto s = shared_items<W>(block, sample_size, true);
    for (int64_t row = block.index().x; row < rows.rows; row += block.grid().x) {
      block.phase("sample", [&](int t) {
        for (int j = t; j < sample_size; j += threads) s.set(j, in.get(row * rows.n + sampled(j, rows.n)));
      });
      sort_tile<W>(block, s, sample_size, rows.order);
      block.phase("store", [&](int t) {
        for (int j = t; j < sample_size; j += threads) out.set(row * sample_size + j, s.get(j));
      });
    }
  }
};

// The bucket of an item, used as the digit of a partition: the number of splitters that come before the item.
template <class W>
struct Bucket {
  Items<W> samples;
  int bits;

  template <class Array>
  struct Bound {
    Array samples;
    ItemOrder<W> order;
    int buckets;
    TP_HD int operator()(int64_t row, const Item<W>& x) const {
      int low = 0, high = buckets - 1;
      while (low < high) {
        const int middle = (low + high) / 2;
        if (order.before(x, samples.get(row * sample_size + (middle + 1) * (sample_size / buckets)))) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      return low;
    }
  };
  template <class Block>
  TP_HD auto bind(Block& block, const Rows<W>& rows) const {
    const auto array = samples.bind(block, "samples", "sampled indices", rows.rows * sample_size);
    return Bound<decltype(array)>{array, rows.order, 1 << bits};
  }
};

// Each block merge-sorts one bucket. The merges alternate between the two arrays, and the result is in `items`.
template <class W>
struct SortBuckets {
  Tiles<W> p;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const Rows<W>& rows = p.rows;
    const auto items = p.items.bind(block, "items", "indices", rows.size());
    const auto spare = p.spare.bind(block, "spare", "spare indices", rows.size());
    const auto begins = block.global("begins", p.begins, p.entries());
    const auto s = shared_items<W>(block, merge_tile, items.indexed);
    for (int64_t id = block.index().x; id < rows.rows * p.digits; id += block.grid().x) {
      const int64_t row = id / p.digits, base = row * rows.n;
      const int64_t begin = block.uniform("begin", [&] { return int64_t(begins[id * p.tiles]); });
      const int64_t end =
          block.uniform("end", [&] { return (id + 1) % p.digits == 0 ? rows.n : int64_t(begins[(id + 1) * p.tiles]); });
      const int64_t n = end - begin;
      for (int64_t first = 0; first < n; first += merge_tile)
        sort_to_tile<W>(block, items, items, s, base + begin, n, first, rows.order);
      bool in_spare = false;
      for (int64_t run = merge_tile; run < n; run *= 2) {
        for (int64_t first = 0; first < n; first += merge_tile)
          merge_to_tile<W>(block, in_spare ? spare : items, in_spare ? items : spare, s, base + begin, n, run, first,
                           rows.order);
        in_spare = !in_spare;
      }
      if (!in_spare) continue;
      block.phase("return", [&](int t) {
        for (int64_t i = t; i < n; i += threads) items.set(base + begin + i, spare.get(base + begin + i));
      });
    }
  }
};

}  // namespace

void sample_sort(const Args& args, Context& context) {
  sort_items("sample_sort", args, context, true, [&](const auto& rows, auto items, auto spare) {
    using W = typename std::decay_t<decltype(rows)>::Word;
    int bits = 0;
    while (bits < bucket_bits && (int64_t(merge_tile) << bits) < rows.n) ++bits;
    Partition<items_per_thread, W> partition(context, rows, items, spare, bits);
    const auto samples = Items<W>::allocate(context, rows.rows * sample_size, true);
    if (bits > 0)
      simt::launch(context, rows.rung, {tp::min(rows.rows, max_grid)}, threads, shared_bytes<W>(sample_size),
                   Sample<W>{rows, items, samples});
    partition.run(Bucket<W>{samples, bits});
    simt::launch(context, rows.rung, {tp::min(rows.rows << bits, max_grid)}, threads, shared_bytes<W>(merge_tile),
                 SortBuckets<W>{partition.tiles()});
    return items;
  });
}

}  // namespace tp::sort
