// Merge sort (§13.7, Fig. 13.11): blocks sort tiles, then every launch merges the runs of a row in pairs, until one run
// is left.
//
// Blocks divide the merges by their outputs, as in chapter 12. Early launches have many merges of few tiles, and late
// ones have few merges of many tiles, but every launch has the same number of blocks. The co-ranks at both ends of a
// block's tile of the output tell which parts of the two runs it consists of. The block loads these parts into shared
// memory, and after a barrier the co-ranks of each thread within them tell what its own outputs consist of. Among equal
// keys those of the first run come first, so the sort is stable. sort_tile (merging.h) sorts the first tiles in the
// same way, in shared memory.
#include "sort/merging.h"

namespace tp::sort {
namespace {

template <class W>
struct SortTiles {
  Rows<W> rows;
  Items<W> from, to;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto input = from.bind(block, "input", "input indices", rows.size());
    const auto output = to.bind(block, "output", "output indices", rows.size());
    const auto keys_s = shared_items<W>(block, merge_tile, input.indexed);
    const int64_t tiles = ceil_div(rows.n, int64_t(merge_tile));
    for (int64_t id = block.index().x; id < rows.rows * tiles; id += block.grid().x) {
      sort_to_tile<W>(block, input, output, keys_s, id / tiles * rows.n, rows.n, id % tiles * merge_tile, rows.order);
    }
  }
};

// Merges the runs of `run` keys in pairs. A run is a multiple of the tile, so every tile of the output comes from one
// pair.
template <class W>
struct MergeRuns {
  Rows<W> rows;
  Items<W> from, to;
  int64_t run;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto input = from.bind(block, "input", "input indices", rows.size());
    const auto output = to.bind(block, "output", "output indices", rows.size());
    const auto keys_s = shared_items<W>(block, merge_tile, input.indexed);
    const int64_t tiles = ceil_div(rows.n, int64_t(merge_tile));
    for (int64_t id = block.index().x; id < rows.rows * tiles; id += block.grid().x) {
      const int64_t row = id / tiles * rows.n, first = id % tiles * merge_tile;
      // The two runs A and B of the pair; the block computes a tile of their merge C.
      const int64_t pair = first / (2 * run) * (2 * run), middle = tp::min(pair + run, rows.n);
      const int64_t m = middle - pair, n = tp::min(pair + 2 * run, rows.n) - middle;
      const auto A = [&](int64_t i) { return input.get(row + pair + i); };
      const auto B = [&](int64_t j) { return input.get(row + middle + j); };
      const int64_t C_curr = first - pair, C_next = tp::min(C_curr + merge_tile, m + n);
      const int64_t A_curr = block.uniform("A_curr", [&] { return co_rank(C_curr, A, m, B, n, rows.order); });
      const int64_t A_next = block.uniform("A_next", [&] { return co_rank(C_next, A, m, B, n, rows.order); });
      const int64_t B_curr = C_curr - A_curr;
      const int a_length = int(A_next - A_curr), c_length = int(C_next - C_curr);
      block.phase("load", [&](int t) {
        for (int i = t; i < c_length; i += threads)
          keys_s.set(i, i < a_length ? A(A_curr + i) : B(B_curr + i - a_length));
      });
      block.phase("merge", [&](int t) {
        const int c_curr = t * items_per_thread, c_next = tp::min(c_curr + items_per_thread, c_length);
        if (c_curr >= c_length) return;
        const auto a = [&](int i) { return keys_s.get(i); };
        const auto b = [&](int j) { return keys_s.get(a_length + j); };
        const int b_length = c_length - a_length;
        int i = co_rank(c_curr, a, a_length, b, b_length, rows.order);
        for (int c = c_curr; c < c_next; ++c) {
          const int j = c - i;
          const bool from_a = j >= b_length || (i < a_length && !rows.order.less(b(j), a(i)));
          output.set(row + first + c, from_a ? a(i) : b(j));
          i += from_a ? 1 : 0;
        }
      });
    }
  }
};

}  // namespace

void merge_sort(const Args& args, Context& context) {
  sort_items("merge_sort", args, context, false, [&](const auto& rows, auto items, auto spare) {
    using W = typename std::decay_t<decltype(rows)>::Word;
    const simt::Dim grid{tp::min(rows.rows * ceil_div(rows.n, int64_t(merge_tile)), max_grid)};
    const int64_t shared = shared_bytes<W>(merge_tile);
    simt::launch(context, rows.rung, grid, threads, shared, SortTiles<W>{rows, items, spare});
    std::swap(items, spare);
    for (int64_t run = merge_tile; run < rows.n; run *= 2) {
      simt::launch(context, rows.rung, grid, threads, shared, MergeRuns<W>{rows, items, spare, run});
      std::swap(items, spare);
    }
    return items;
  });
}

}  // namespace tp::sort
