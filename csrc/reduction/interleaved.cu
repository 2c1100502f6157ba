// Interleaved addressing (001, the first kernel).
//
// An element a lane, in shared memory. Invariant: after the step of stride d, s[i] combines the 2d elements from i on,
// for every i that is a multiple of 2d. The lanes that still work are the multiples of 2d, found by a remainder: from
// the first step on every warp has idle lanes, and all warps stay busy to the end. The barrier after a step lets the
// next one read what its neighbours wrote. Neighbours are combined in order, so the operator need not commute.
#include "reduction/sections.h"

namespace tp::reduction {
namespace {

struct Interleaved {
  static constexpr int threads = 256, section = threads, size = section, place = 0;
  static constexpr bool in_global = false;

  template <class M, class Block, class Array, class X>
  TP_HD static void reduce(Block& block, Array s, const X& x) {
    block.phase("load", [&](int t) { s[t] = x(t); });
    for (int stride = 1; stride < threads; stride *= 2) {
      block.phase("combine", [&](int t) {
        if (t % (2 * stride) == 0) s[t] = M::combine(s[t], s[t + stride]);
      });
    }
  }
};

}  // namespace

void interleaved(const Args& args, Context& context) { reduce_by_sections<Interleaved>("interleaved", args, context); }

}  // namespace tp::reduction
