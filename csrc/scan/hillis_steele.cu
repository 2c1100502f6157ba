// Hillis-Steele scan of a block, double buffered (000; exercise 11.2 asks for it).
//
// Invariant: after the step of stride d, the buffer just written holds at i the combination of the 2d elements that end
// at i. A step reads one buffer and writes the other, so no lane can overwrite what another still reads, and one
// barrier a step is enough. 000's listing says `+=` into the new buffer, which would add what that buffer held two
// steps ago: it must assign.
#include "scan/hierarchical.h"

namespace tp::scan {
namespace {

struct HillisSteele {
  static constexpr int section = 256, threads = section, scratch = section;
  static constexpr bool exclusive = false;

  template <class M, class Block, class Array>
  TP_HD static void scan(Block& block, Array s, Array other) {
    using Acc = typename M::Acc;
    Array from = s, to = other;
    for (int stride = 1; stride < section; stride *= 2) {
      block.phase("step", [&](int t) {
        const Acc own = from[t];
        if (t >= stride) {
          to[t] = M::combine(from[t - stride], own);
        } else {
          to[t] = own;
        }
      });
      const Array written = to;
      to = from;
      from = written;
    }
    static_assert(section == 256, "eight steps, an even number: the result is back in s");
  }
};

}  // namespace

void hillis_steele(const Args& args, Context& context) {
  scan_hierarchically<HillisSteele>("hillis_steele", args, context);
}

}  // namespace tp::scan
