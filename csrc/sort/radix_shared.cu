// Radix sort with local buckets in shared memory (§13.4, Figs. 13.5 and 13.6): one bit per pass, one key per thread.
//
// Fig. 13.2 scatters each key to any index of the row. Here each block first sorts its tile by the bit in shared
// memory, as Fig. 13.4 sorts the row, and then writes its two local buckets as two runs of consecutive addresses. The
// indices at which the runs begin are known only after all tiles have counted their buckets: local_buckets.h contains
// the table and the three launches. Barriers separate the extraction of the bits, the two halves of each Kogge-Stone
// step (Fig. 11.3), the scatter, and the copy to global memory, because each step reads what other threads wrote. The
// sort of a tile is stable, so the whole sort is.
#include "sort/local_buckets.h"

namespace tp::sort {
namespace {

template <class W>
struct SortTiles {
  static constexpr int bits = 1, tile = threads;
  static constexpr int64_t shared_bytes = sort::shared_bytes<W>(tile) + threads * int64_t(sizeof(int));
  RadixPass<W> pass;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const int64_t n = pass.rows.n;
    const auto input = pass.keys.bind(block, "input", "input indices", pass.rows.size());
    const auto output = pass.sorted_tiles.bind(block, "output", "output indices", pass.rows.size());
    const auto sizes = block.global("sizes", pass.sizes, pass.entries());
    const auto keys_s = shared_items<W>(block, tile, input.indexed);
    const auto ones = block.template shared<int>("ones", threads);
    auto bit = block.template per_lane<int>("bit");
    auto temp = block.template per_lane<int>("temp");
    for (int64_t id = block.index().x; id < pass.rows.rows * pass.tiles; id += block.grid().x) {
      const int64_t row = id / pass.tiles, column = id % pass.tiles, first = row * n + column * tile;
      const int count = int(tp::min(int64_t(tile), n - column * tile));
      block.phase("extract", [&](int t) {
        bit[t] = t < count ? pass.digit(input.get(first + t).key) : 0;
        ones[t] = bit[t];
      });
      for (int stride = 1; stride < threads; stride *= 2) {  // makes `ones` its inclusive scan
        block.phase("read", [&](int t) { temp[t] = t >= stride ? int(ones[t - stride]) : 0; });
        block.phase("add", [&](int t) { ones[t] += temp[t]; });
      }
      const int ones_total = block.uniform("ones_total", [&] { return int(ones[threads - 1]); });
      const int zeros_total = count - ones_total;
      block.phase("scatter", [&](int t) {
        if (t >= count) return;
        const int ones_before = ones[t] - bit[t];
        const int dst = bit[t] == 0 ? t - ones_before : zeros_total + ones_before;
        keys_s.set(dst, input.get(first + t));
      });
      block.phase("store", [&](int t) {
        if (t < count) output.set(first + t, keys_s.get(t));
        if (t < 2) sizes[pass.entry(row, t, column)] = t == 0 ? zeros_total : ones_total;
      });
    }
  }
};

// The thread's index in the tile tells the local bucket of its key, because zeros come first.
template <class W>
struct CopyBuckets {
  static constexpr int tile = SortTiles<W>::tile;
  static constexpr int64_t shared_bytes = 0;
  RadixPass<W> pass;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const int64_t n = pass.rows.n;
    const auto input = pass.sorted_tiles.bind(block, "input", "input indices", pass.rows.size());
    const auto output = pass.keys.bind(block, "output", "output indices", pass.rows.size());
    const auto sizes = block.global("sizes", pass.sizes, pass.entries());
    const auto begins = block.global("begins", pass.begins, pass.entries());
    for (int64_t id = block.index().x; id < pass.rows.rows * pass.tiles; id += block.grid().x) {
      const int64_t row = id / pass.tiles, column = id % pass.tiles, first = row * n + column * tile;
      block.phase("copy", [&](int t) {
        if (column * tile + t >= n) return;
        const int zeros = sizes[pass.entry(row, 0, column)], bucket = t < zeros ? 0 : 1;
        const int64_t begin = begins[pass.entry(row, bucket, column)];
        output.set(row * n + begin + (bucket == 0 ? t : t - zeros), input.get(first + t));
      });
    }
  }
};

}  // namespace

void radix_shared(const Args& args, Context& context) {
  sort_by_local_buckets<SortTiles, CopyBuckets>("radix_shared", args, context);
}

}  // namespace tp::sort
