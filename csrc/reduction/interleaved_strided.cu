// Interleaved addressing by consecutive lanes (001, "fixing branch divergence").
//
// The tree of `interleaved`, but lane t does the work at element 2dt: the working lanes are the first ones, so warps
// retire whole and at most one diverges. The price is in shared memory: the lanes of a warp now touch elements 2d
// apart, which share ever fewer banks, and a bank serves one lane at a time.
#include "reduction/sections.h"

namespace tp::reduction {
namespace {

struct InterleavedStrided {
  static constexpr int threads = 256, section = threads, size = section, place = 0;
  static constexpr bool in_global = false;

  template <class M, class Block, class Array, class X>
  TP_HD static void reduce(Block& block, Array s, const X& x) {
    block.phase("load", [&](int t) { s[t] = x(t); });
    for (int stride = 1; stride < threads; stride *= 2) {
      block.phase("combine", [&](int t) {
        const int i = 2 * stride * t;
        if (i < threads) s[i] = M::combine(s[i], s[i + stride]);
      });
    }
  }
};

}  // namespace

void interleaved_strided(const Args& args, Context& context) {
  reduce_by_sections<InterleavedStrided>("interleaved_strided", args, context);
}

}  // namespace tp::reduction
