// Brent-Kung scan of a block (§11.4, Figs. 11.5 to 11.7; 002).
//
// Reduction tree: after stride d every index of the form 2d m - 1 holds the combination of the 2d elements that end
// there. Distribution tree, strides downwards: s[2d m - 1] is a finished prefix, and pushing it d places to the right
// finishes the element there. A barrier parts the strides, because each reads what the last one wrote. Consecutive
// lanes do the work of a stride, so warps stay whole until fewer than a warp of additions is left; half a section of
// lanes is enough. Fig. 11.7 combines (later, earlier); here the earlier operand comes first.
#include "scan/hierarchical.h"

namespace tp::scan {
namespace {

struct BrentKung {
  static constexpr int section = 512, threads = section / 2, scratch = 0;
  static constexpr bool exclusive = false;

  template <class M, class Block, class Array>
  TP_HD static void scan(Block& block, Array s, Array) {
    for (int stride = 1; stride < section; stride *= 2) {
      block.phase("reduce", [&](int t) {
        const int i = (t + 1) * 2 * stride - 1;
        if (i < section) s[i] = M::combine(s[i - stride], s[i]);
      });
    }
    for (int stride = section / 4; stride > 0; stride /= 2) {
      block.phase("distribute", [&](int t) {
        const int i = (t + 1) * 2 * stride - 1;
        if (i + stride < section) s[i + stride] = M::combine(s[i], s[i + stride]);
      });
    }
  }
};

}  // namespace

void brent_kung(const Args& args, Context& context) { scan_hierarchically<BrentKung>("brent_kung", args, context); }

}  // namespace tp::scan
