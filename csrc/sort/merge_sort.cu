// Merge sort (§13.7, Fig. 13.11): blocks sort tiles, then every launch merges the runs of a row in pairs, until one is
// left. The blocks of a merge share it by its outputs, as in chapter 12: early launches have many merges of few tiles,
// late ones few merges of many tiles, and the same number of blocks keeps busy.
#include "sort/merging.h"

namespace tp::sort {
namespace {

// One launch over all tiles of all rows: sorts each (run 0), or writes each of the merge of runs of `run` items.
template <class W>
struct Pass {
  Rows<W> rows;
  Items<W> from, to;
  int64_t run;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto in = from.bind(block, "items", "places", rows.size());
    const auto out = to.bind(block, "items out", "places out", rows.size());
    const auto s = shared_items<W>(block, merge_tile, in.placed);
    const int64_t tiles = ceil_div(rows.n, int64_t(merge_tile));
    for (int64_t id = block.index().x; id < rows.rows * tiles; id += block.grid().x) {
      const int64_t base = id / tiles * rows.n, first = id % tiles * merge_tile;
      if (run == 0) {
        sort_to_tile<W>(block, in, out, s, base, rows.n, first, rows.order);
      } else {
        merge_to_tile<W>(block, in, out, s, base, rows.n, run, first, rows.order);
      }
    }
  }
};

}  // namespace

void merge_sort(const Args& args, Context& context) {
  sort_items("merge_sort", args, context, false, [&](const auto& rows, auto items, auto spare) {
    using W = typename std::decay_t<decltype(rows)>::Word;
    const simt::Dim grid{tp::min(rows.rows * ceil_div(rows.n, int64_t(merge_tile)), max_grid)};
    for (int64_t run = 0; run < rows.n; run = run == 0 ? merge_tile : 2 * run) {
      simt::launch(context, rows.rung, grid, threads, shared_bytes<W>(merge_tile), Pass<W>{rows, items, spare, run});
      std::swap(items, spare);
    }
    return items;
  });
}

}  // namespace tp::sort
