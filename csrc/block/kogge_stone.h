// Kogge-Stone scan of a block (§11.2, Figs. 11.2 and 11.3).
//
// Invariant: after the step of stride d, s[i] combines the 2d elements that end at i (fewer near the start). Each step
// reads its left neighbour at distance d and, only when every lane has read, overwrites: the barrier between is what
// keeps a lane from reading a neighbour's new value. The figure adds (own, left); here the left one comes first, for it
// is the earlier.
#pragma once
#include "core/simt.h"

namespace tp::block {

template <int n>
struct KoggeStone {
  static constexpr int section = n, threads = n, scratch = 0;
  static constexpr bool exclusive = false;

  template <class M, class Block, class Array>
  TP_HD static void scan(Block& block, Array s, Array) {
    auto left = block.template per_lane<typename M::Acc>("left");
    for (int stride = 1; stride < n; stride *= 2) {
      block.phase("read", [&](int t) {
        if (t >= stride && t < n) left[t] = s[t - stride];
      });
      block.phase("combine", [&](int t) {
        if (t >= stride && t < n) s[t] = M::combine(left[t], s[t]);
      });
    }
  }
};

}  // namespace tp::block
