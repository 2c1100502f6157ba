// Brent-Kung scan of a block with the lanes picked by a remainder (§11.4, the text's first form).
//
// The same two trees as brent_kung, but the lane that owns element i does its work: at stride d only every 2d-th lane
// is active, so the active lanes lie ever farther apart and nearly every warp diverges. That cost is what brent_kung
// removes.
#include "scan/hierarchical.h"

namespace tp::scan {
namespace {

struct BrentKungModulo {
  static constexpr int section = 256, threads = section, scratch = 0;
  static constexpr bool exclusive = false;

  template <class M, class Block, class Array>
  TP_HD static void scan(Block& block, Array s, Array) {
    for (int stride = 1; stride < section; stride *= 2) {
      block.phase("reduce", [&](int t) {
        if ((t + 1) % (2 * stride) == 0) s[t] = M::combine(s[t - stride], s[t]);
      });
    }
    for (int stride = section / 4; stride > 0; stride /= 2) {
      block.phase("distribute", [&](int t) {
        if ((t + 1) % (2 * stride) == stride && t > stride) s[t] = M::combine(s[t - stride], s[t]);
      });
    }
  }
};

}  // namespace

void brent_kung_modulo(const Args& args, Context& context) {
  scan_hierarchically<BrentKungModulo>("brent_kung_modulo", args, context);
}

}  // namespace tp::scan
