// The three-phase scan of a block (§11.5, Fig. 11.8).
//
// Phase 1: each lane scans its own stretch of `items` consecutive elements, one after another. Phase 2: the lanes'
// totals are scanned by `Inner`, for whose use they are copied out. Phase 3: each lane combines its stretch with the
// total of all stretches before it. Work n - t + t log t + n - t: with t far below n, hardly more than twice the
// sequential scan.
#pragma once
#include "core/simt.h"

namespace tp::block {

template <class Inner, int items>
struct Coarsened {
  static constexpr int threads = Inner::section, section = threads * items, scratch = threads;
  static constexpr bool exclusive = false;

  template <class M, class Block, class Array>
  TP_HD static void scan(Block& block, Array s, Array totals) {
    using Acc = typename M::Acc;
    block.phase("stretches", [&](int t) {
      Acc running = s[t * items];
      for (int i = t * items + 1; i < (t + 1) * items; ++i) {
        running = M::combine(running, s[i]);
        s[i] = running;
      }
      totals[t] = running;
    });
    Inner::template scan<M>(block, totals, totals);
    block.phase("complete", [&](int t) {
      if (t == 0) return;
      const Acc before = totals[t - 1];
      for (int i = t * items; i < (t + 1) * items; ++i) s[i] = M::combine(before, s[i]);
    });
  }
};

}  // namespace tp::block
