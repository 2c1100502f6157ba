// The tree that halves (Fig. 10.8; 001, "sequential addressing"; 003, "a better reduction kernel"), over the first
// 2 * `stride` elements of s: lane t < d takes element t + d, then d halves.
//
// Invariant: after the step of stride d, the first d elements together combine all of them. The working lanes are the
// first d and their addresses are consecutive: no divergence until a single warp is left, no bank conflicts, coalesced
// in global memory. An element meets one half a section away, so the operator must commute. No lane reads what another
// one writes in the same step, so one barrier a step is enough.
#pragma once
#include "core/simt.h"

namespace tp::reduction {

template <class M, class Block, class Array>
TP_HD void reduce_by_halves(Block& block, Array s, int stride) {
  for (; stride >= 1; stride /= 2) {
    block.phase("combine", [&](int t) {
      if (t < stride) s[t] = M::combine(s[t], s[t + stride]);
    });
  }
}

}  // namespace tp::reduction
