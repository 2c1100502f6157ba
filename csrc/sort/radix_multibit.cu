// Radix sort by two bits per pass (§13.5, Figs. 13.7 to 13.9). There are half as many passes over global memory, but
// four local buckets per block instead of two, so runs of writes are half as long. One key per thread.
//
// A block sorts its tile in shared memory by two 1-bit iterations, the lower bit first; each has its own scan (Fig.
// 13.8). The table of bucket sizes has four rows (Fig. 13.9); local_buckets.h contains it and the three launches.
// Barriers are at the same points as in radix_shared, between the steps of an iteration, because each step reads what
// other threads wrote. In the last launch, the index of a key in its local bucket is its index in the tile minus the
// sizes of the buckets before.
#include "sort/local_buckets.h"

namespace tp::sort {
namespace {

template <class W>
struct SortTiles {
  static constexpr int bits = 2, buckets = 1 << bits, tile = threads;
  static constexpr int64_t shared_bytes = sort::shared_bytes<W>(tile) + (threads + buckets) * int64_t(sizeof(int));
  RadixPass<W> pass;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const int64_t n = pass.rows.n;
    const auto input = pass.keys.bind(block, "input", "input indices", pass.rows.size());
    const auto output = pass.sorted_tiles.bind(block, "output", "output indices", pass.rows.size());
    const auto sizes = block.global("sizes", pass.sizes, pass.entries());
    const auto keys_s = shared_items<W>(block, tile, input.indexed);
    const auto ones = block.template shared<int>("ones", threads);
    const auto sizes_s = block.template shared<int>("sizes_s", buckets);
    auto key = block.template per_lane<Item<W>>("key");
    auto bit = block.template per_lane<int>("bit");
    auto temp = block.template per_lane<int>("temp");
    for (int64_t id = block.index().x; id < pass.rows.rows * pass.tiles; id += block.grid().x) {
      const int64_t row = id / pass.tiles, column = id % pass.tiles, first = row * n + column * tile;
      const int count = int(tp::min(int64_t(tile), n - column * tile));
      block.phase("load", [&](int t) {
        if (t < count) keys_s.set(t, input.get(first + t));
        if (t < buckets) sizes_s[t] = 0;
      });
      for (int iter = 0; iter < bits; ++iter) {
        block.phase("extract", [&](int t) {
          if (t < count) key[t] = keys_s.get(t);
          bit[t] = t < count ? pass.digit(key[t].key) >> iter & 1 : 0;
          ones[t] = bit[t];
        });
        for (int stride = 1; stride < threads; stride *= 2) {  // makes `ones` its inclusive scan
          block.phase("read", [&](int t) { temp[t] = t >= stride ? int(ones[t - stride]) : 0; });
          block.phase("add", [&](int t) { ones[t] += temp[t]; });
        }
        const int zeros_total = count - block.uniform("ones_total", [&] { return int(ones[threads - 1]); });
        block.phase("scatter", [&](int t) {
          if (t >= count) return;
          const int ones_before = ones[t] - bit[t];
          keys_s.set(bit[t] == 0 ? t - ones_before : zeros_total + ones_before, key[t]);
        });
      }
      block.phase("store", [&](int t) {
        if (t >= count) return;
        const Item<W> sorted = keys_s.get(t);
        output.set(first + t, sorted);
        sizes_s.template atomic<Sum<int>>(pass.digit(sorted.key), 1);
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
        if (column * tile + t >= n) return;
        const Item<W> key = input.get(first + t);
        const int bucket = pass.digit(key.key);
        const int64_t begin = begins[pass.entry(row, bucket, column)];
        output.set(row * n + begin + t - before_s[bucket], key);
      });
    }
  }
};

}  // namespace

void radix_multibit(const Args& args, Context& context) {
  sort_by_local_buckets<SortTiles, CopyBuckets>("radix_multibit", args, context);
}

}  // namespace tp::sort
