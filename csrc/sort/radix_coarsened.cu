// Radix sort with thread coarsening (§13.6, Fig. 13.10): eight keys per thread. Local buckets and therefore runs of
// writes are eight times as long, and the table of bucket sizes is an eighth as large. This makes four bits per pass
// worthwhile.
//
// In a 1-bit iteration of the local sort, each thread counts the ones among its own consecutive keys, the counts of all
// threads are scanned, and each thread goes through its keys again to scatter them. Everything else, including the
// barriers, is as in radix_multibit. Copies between shared and global memory are coalesced: neighbouring threads take
// neighbouring keys.
#include "sort/local_buckets.h"

namespace tp::sort {
namespace {

template <class W>
struct SortTiles {
  static constexpr int bits = 4, buckets = 1 << bits, keys_per_thread = 8, tile = threads * keys_per_thread;
  static constexpr int64_t shared_bytes = sort::shared_bytes<W>(tile) + (threads + buckets) * int64_t(sizeof(int));
  RadixPass<W> pass;

  struct Keys {  // what a thread keeps between phases
    Item<W> key[keys_per_thread];
    int ones;
  };

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const int64_t n = pass.rows.n;
    const auto input = pass.keys.bind(block, "input", "input indices", pass.rows.size());
    const auto output = pass.sorted_tiles.bind(block, "output", "output indices", pass.rows.size());
    const auto sizes = block.global("sizes", pass.sizes, pass.entries());
    const auto keys_s = shared_items<W>(block, tile, input.indexed);
    const auto ones = block.template shared<int>("ones", threads);
    const auto sizes_s = block.template shared<int>("sizes_s", buckets);
    auto own = block.template per_lane<Keys>("own");
    auto temp = block.template per_lane<int>("temp");
    for (int64_t id = block.index().x; id < pass.rows.rows * pass.tiles; id += block.grid().x) {
      const int64_t row = id / pass.tiles, column = id % pass.tiles, first = row * n + column * tile;
      const int count = int(tp::min(int64_t(tile), n - column * tile));
      block.phase("load", [&](int t) {
        for (int i = t; i < count; i += threads) keys_s.set(i, input.get(first + i));
        if (t < buckets) sizes_s[t] = 0;
      });
      for (int iter = 0; iter < bits; ++iter) {
        block.phase("extract", [&](int t) {
          own[t].ones = 0;
          for (int k = 0, i = t * keys_per_thread; k < keys_per_thread && i < count; ++k, ++i) {
            own[t].key[k] = keys_s.get(i);
            own[t].ones += pass.digit(own[t].key[k].key) >> iter & 1;
          }
          ones[t] = own[t].ones;
        });
        for (int stride = 1; stride < threads; stride *= 2) {  // makes `ones` its inclusive scan
          block.phase("read", [&](int t) { temp[t] = t >= stride ? int(ones[t - stride]) : 0; });
          block.phase("add", [&](int t) { ones[t] += temp[t]; });
        }
        const int zeros_total = count - block.uniform("ones_total", [&] { return int(ones[threads - 1]); });
        block.phase("scatter", [&](int t) {
          int ones_before = ones[t] - own[t].ones;
          for (int k = 0, i = t * keys_per_thread; k < keys_per_thread && i < count; ++k, ++i) {
            const int bit = pass.digit(own[t].key[k].key) >> iter & 1;
            keys_s.set(bit == 0 ? i - ones_before : zeros_total + ones_before, own[t].key[k]);
            ones_before += bit;
          }
        });
      }
      block.phase("store", [&](int t) {
        for (int i = t; i < count; i += threads) {
          const Item<W> sorted = keys_s.get(i);
          output.set(first + i, sorted);
          sizes_s.template atomic<Sum<int>>(pass.digit(sorted.key), 1);
        }
      });
      block.phase("sizes", [&](int t) {
        if (t < buckets) sizes[pass.entry(row, t, column)] = sizes_s[t];
      });
    }
  }
};

template <class W>
struct CopyBuckets {
  static constexpr int buckets = SortTiles<W>::buckets, tile = SortTiles<W>::tile;
  static constexpr int64_t shared_bytes = buckets * int64_t(sizeof(int));
  RadixPass<W> pass;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const int64_t n = pass.rows.n;
    const auto input = pass.sorted_tiles.bind(block, "input", "input indices", pass.rows.size());
    const auto output = pass.keys.bind(block, "output", "output indices", pass.rows.size());
    const auto sizes = block.global("sizes", pass.sizes, pass.entries());
    const auto begins = block.global("begins", pass.begins, pass.entries());
    const auto before_s = block.template shared<int>("before_s", buckets);  // keys of the tile before a local bucket
    for (int64_t id = block.index().x; id < pass.rows.rows * pass.tiles; id += block.grid().x) {
      const int64_t row = id / pass.tiles, column = id % pass.tiles, first = row * n + column * tile;
      block.phase("before", [&](int t) {
        if (t >= buckets) return;
        int before = 0;
        for (int bucket = 0; bucket < t; ++bucket) before += sizes[pass.entry(row, bucket, column)];
        before_s[t] = before;
      });
      block.phase("copy", [&](int t) {
        for (int i = t; i < tile && column * tile + i < n; i += threads) {
          const Item<W> key = input.get(first + i);
          const int bucket = pass.digit(key.key);
          const int64_t begin = begins[pass.entry(row, bucket, column)];
          output.set(row * n + begin + i - before_s[bucket], key);
        }
      });
    }
  }
};

}  // namespace

void radix_coarsened(const Args& args, Context& context) {
  sort_by_local_buckets<SortTiles, CopyBuckets>("radix_coarsened", args, context);
}

}  // namespace tp::sort
