// Running sums within a block (Hillis and Steele 1986).
#pragma once
#include "core/simt.h"

namespace tp::sparse {

// Adds up numbers of the lanes: from sums[t] of each lane t to the sum of those of the lanes up to t. `sums` has two
// elements per lane. Each step writes the other half of it; returns where the half with the result begins.
template <class Block, class Sums>
TP_HD int running_sums(Block& block, const Sums& sums) {
  const int threads = block.threads();
  int from = 0;
  for (int stride = 1; stride < threads; stride *= 2, from = threads - from) {
    block.phase("scan", [&](int t) {
      int sum = sums[from + t];
      if (t >= stride) sum += int(sums[from + t - stride]);
      sums[threads - from + t] = sum;
    });
  }
  return from;
}

}  // namespace tp::sparse
