// The scan that moves no byte twice: one launch, each element read once and written once (after Merrill and Garland,
// 2016, with the look-back in a fixed order, so that floats give the same bits in every run).
//
// Contiguous rows are laid end to end and cut into tiles, whatever the length of a row: an element at the start of its
// row does not combine with what precedes it. Where rows interleave (inner > 1), a tile is a strip of `warp_size`
// neighbouring rows. A block takes a tile by ticket, loads it into registers, scans it by warp shuffles, publishes its
// total at once, looks up the totals before it (block/lookback.cuh) and completes its elements. Whoever holds a smaller
// ticket has started and publishes without waiting for a larger one, so every wait ends.
#include "scan/elements.h"
#ifdef __CUDACC__
#include "scan/lookback_rows.cuh"
#include "scan/lookback_strips.cuh"

namespace tp::scan {

void decoupled_lookback(const Args& args, Context& context) {
  with_elements(args, [&](const auto& elements) {
    if (elements.inner == 1) {
      lookback::scan_rows(elements, context);
    } else {
      lookback::scan_strips(elements, context);
    }
  });
}

}  // namespace tp::scan
#endif
