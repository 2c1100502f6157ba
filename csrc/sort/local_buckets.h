// Shared by the radix sorts with local buckets (§13.4 to §13.6, Fig. 13.6): the arrays of a pass, and its three
// launches. The first kernel sorts every tile by the digit and fills in a table with the sizes of the tiles' local
// buckets, one row per bucket and one column per tile. A scan of the table in memory order gives every local bucket the
// index among the row's keys at which it begins. The last kernel copies every local bucket there.
#pragma once
#include "scan/scan.h"
#include "sort/items.h"

namespace tp::sort {

template <class W>
struct RadixPass {
  Rows<W> rows;
  int64_t tiles;  // per row
  int buckets;
  Items<W> keys, sorted_tiles;
  int32_t* sizes;   // the table: [rows, buckets, tiles]
  int64_t* begins;  // the table, scanned
  int shift;        // the lowest bit of the digit in the window of the keys

  TP_HD int64_t entry(int64_t row, int bucket, int64_t tile) const { return (row * buckets + bucket) * tiles + tile; }
  TP_HD int64_t entries() const { return rows.rows * buckets * tiles; }
  TP_HD int digit(W key) const { return int(rows.order.keys.window(key) >> shift) & (buckets - 1); }
};

// A rung, from the lowest digit up. The kernels are templates over the word of a key. The first kernel defines how many
// `bits` a digit has, how many keys a `tile` has, and how much shared memory each kernel takes.
template <template <class> class SortTiles, template <class> class CopyBuckets>
void sort_by_local_buckets(const char* rung, const Args& args, Context& context) {
  sort_items(rung, args, context, false, [&](const auto& rows, auto keys, auto spare) {
    using W = typename std::decay_t<decltype(rows)>::Word;
    using First = SortTiles<W>;
    using Last = CopyBuckets<W>;
    RadixPass<W> pass{rows, ceil_div(rows.n, int64_t(First::tile)), 1 << First::bits, keys, spare, nullptr, nullptr, 0};
    pass.sizes = context.workspace<int32_t>(pass.entries());
    pass.begins = context.workspace<int64_t>(pass.entries());
    const simt::Dim grid{tp::min(rows.rows * pass.tiles, max_grid)};
    for (; pass.shift < args.end_bit - args.begin_bit; pass.shift += First::bits) {
      simt::launch(context, rung, grid, threads, First::shared_bytes, First{pass});
      scan::scan_counts(context, pass.sizes, pass.begins, rows.rows, pass.buckets * pass.tiles);
      simt::launch(context, rung, grid, threads, Last::shared_bytes, Last{pass});
    }
    return keys;
  });
}

}  // namespace tp::sort
