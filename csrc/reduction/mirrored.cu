// The convergent reduction from the other end (exercise 10.3).
//
// Lane t owns element t + threads, in the second half, and takes the one a stride to its left; the lanes that retire
// are the first ones. Invariant: after the step of stride d, the last d elements together combine all of them; the last
// element ends with the result. Divergence and coalescing are those of `convergent`, and so is the copy of the section.
#include "reduction/sections.h"

namespace tp::reduction {
namespace {

struct Mirrored {
  static constexpr int threads = 256, section = 2 * threads, size = section, place = section - 1;
  static constexpr bool in_global = true;

  template <class M, class Block, class Array, class X>
  TP_HD static void reduce(Block& block, Array s, const X& x) {
    block.phase("load", [&](int t) {
      s[t] = x(t);
      s[t + threads] = x(t + threads);
    });
    for (int stride = threads; stride >= 1; stride /= 2) {
      block.phase("combine", [&](int t) {
        const int i = t + threads;
        if (t >= threads - stride) s[i] = M::combine(s[i - stride], s[i]);
      });
    }
  }
};

}  // namespace

void mirrored(const Args& args, Context& context) { reduce_by_sections<Mirrored>("mirrored", args, context); }

}  // namespace tp::reduction
