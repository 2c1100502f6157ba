// The merge of a block by tiles in shared memory (§12.6-12.7), with tiles that are loaded anew in every iteration or
// kept in circular buffers.
//
// Part 1 (Fig. 12.11): one lane searches global memory for the co-ranks of the block's section of the output, so the
// block knows its stretches of A and B. Then, as long as outputs are missing:
// Part 2 (Fig. 12.12, 12.16): the lanes load tiles, side by side, the next `tile` elements of each stretch. That is
// enough for `tile` outputs even if all come from one side, so of the elements in the two tiles at most half are used.
// Part 3 (Fig. 12.13, 12.18): each lane searches the tiles for the co-ranks of its `items` outputs and merges them.
//
// Invariant: element e of a tile, counted from the first that is not yet used, lies at (start + e) % tile. Where tiles
// are loaded anew, start stays 0; in a circular buffer (Fig. 12.15) start moves on by what was used, and only the
// places that became free are filled. Co-ranks count from the start, so the search and the merge are those of all other
// rungs and know nothing of it (Fig. 12.17B).
#pragma once
#include "merge/elements.h"

namespace tp::merge {

template <class Merge, bool circular>
struct MergeTiles {
  using Word = typename Merge::Word;
  static constexpr int threads = 128, items = 8, tile = threads * items, section = 4 * tile;
  static constexpr int64_t shared_bytes = 2 * tile * int64_t(sizeof(Word)) + 2 * int64_t(sizeof(int64_t));
  Merge merge;

  // One side: the block's stretch of A or of B, and its tile.
  struct Side {
    int64_t begin, length;  // in the row
    int64_t used = 0;       // elements of the stretch that are merged
    int start = 0, kept = 0;

    TP_HD int available() const { return int(tp::min(int64_t(tile), length - used)); }
    TP_HD int place(int64_t e) const { return int((start + e) % tile); }
    TP_HD void use(int count) {
      if (circular) {
        start = (start + count) % tile;
        kept = available() - count;
      }
      used += count;
    }
  };

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = merge.bind(block);
    auto bounds = block.template shared<int64_t>("bounds", 2);
    auto s_a = block.template shared<Word>("a tile", tile);
    auto s_b = block.template shared<Word>("b tile", tile);
    const int64_t total = merge.total(), sections = ceil_div(total, int64_t(section));
    for (int64_t id = block.index().x; id < merge.in.rows * sections; id += block.grid().x) {
      const int64_t row = id / sections, first = id % sections * section, end = tp::min(first + section, total);
      block.phase("block co-ranks", [&](int t) {
        if (t < 2) bounds[t] = x.in.co_rank(row, t == 0 ? first : end);
      });
      const int64_t i = block.uniform("begin", [&] { return int64_t(bounds[0]); });
      const int64_t of_a = share_of_a(i, block.uniform("end", [&] { return int64_t(bounds[1]); }), end - first);
      Side a{i, of_a}, b{first - i, end - first - of_a};
      while (a.used + b.used < end - first) {
        block.phase("load", [&](int t) {
          for (int e = a.kept + t; e < a.available(); e += threads) {
            s_a[a.place(e)] = x.in.a[row * x.in.m + a.begin + a.used + e];
          }
          for (int e = b.kept + t; e < b.available(); e += threads) {
            s_b[b.place(e)] = x.in.b[row * x.in.n + b.begin + b.used + e];
          }
        });
        const auto later = [&](int64_t p, int64_t q) {
          const Word u = s_a[a.place(p)], v = s_b[b.place(q)];
          return x.in.order.image(u) > x.in.order.image(v);
        };
        const int64_t done = a.used + b.used;
        const int count = int(tp::min(int64_t(tile), end - first - done));
        block.phase("merge", [&](int t) {
          const int c = tp::min(t * items, count), c_next = tp::min(c + items, count);
          const int64_t p = co_rank(c, a.available(), b.available(), later), q = c - p;
          const int64_t lane_a =
              share_of_a(p, co_rank(c_next, a.available(), b.available(), later), int64_t(c_next - c));
          merge_sequential(
              lane_a, c_next - c - lane_a, [&](int64_t u, int64_t v) { return later(p + u, q + v); },
              [&](int64_t u, int64_t at) {
                const Word key = s_a[a.place(p + u)];
                x.take_a(row, a.begin + a.used + p + u, first + done + c + at, key);
              },
              [&](int64_t v, int64_t at) {
                const Word key = s_b[b.place(q + v)];
                x.take_b(row, b.begin + b.used + q + v, first + done + c + at, key);
              });
        });
        const int from_a =
            int(block.uniform("used", [&] { return co_rank(count, a.available(), b.available(), later); }));
        a.use(from_a);
        b.use(count - from_a);
      }
    }
  }
};

template <bool circular>
void merge_tiles(const char* name, const Args& args, Context& context) {
  with_merge(args, [&](const auto& merge) {
    using Kernel = MergeTiles<std::decay_t<decltype(merge)>, circular>;
    const int64_t blocks = merge.in.rows * ceil_div(merge.total(), int64_t(Kernel::section));
    simt::launch(context, name, {tp::min(blocks, max_grid)}, Kernel::threads, Kernel::shared_bytes, Kernel{merge});
  });
}

}  // namespace tp::merge
