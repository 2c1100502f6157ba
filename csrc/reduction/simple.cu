// The simple reduction (Fig. 10.6; 003, "a basic reduction kernel").
//
// Lane t owns element 2t and nobody else writes there. Invariant: after the step of stride d, element i combines the 2d
// elements from i on, for every i that is a multiple of 2d. Half as many lanes as elements do the first step, but then
// the working lanes drift apart as in `interleaved`: control diverges, and so do the addresses, which are in global
// memory. The figure reduces its input in place; here the lanes first copy the section to a workspace, because an
// operator leaves its inputs alone, and pad it with the identity, because n is arbitrary.
#include "reduction/sections.h"

namespace tp::reduction {
namespace {

struct Simple {
  static constexpr int threads = 256, section = 2 * threads, size = section, place = 0;
  static constexpr bool in_global = true;

  template <class M, class Block, class Array, class X>
  TP_HD static void reduce(Block& block, Array s, const X& x) {
    block.phase("load", [&](int t) {
      s[2 * t] = x(2 * t);
      s[2 * t + 1] = x(2 * t + 1);
    });
    for (int stride = 1; stride <= threads; stride *= 2) {
      block.phase("combine", [&](int t) {
        if (t % stride == 0) s[2 * t] = M::combine(s[2 * t], s[2 * t + stride]);
      });
    }
  }
};

}  // namespace

void simple(const Args& args, Context& context) { reduce_by_sections<Simple>("simple", args, context); }

}  // namespace tp::reduction
