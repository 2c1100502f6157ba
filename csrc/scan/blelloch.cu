// Blelloch scan of a block (000: up-sweep and down-sweep), exclusive by nature.
//
// Up-sweep: as in any reduction tree, the last element of every 2d-element subtree comes to hold the subtree's
// combination. Then the root is set to the identity. Down-sweep invariant: before stride d, the last element of every
// 2d-subtree holds the combination of all that precedes the subtree. The step hands it to the left child as it is, and
// to the right child combined with what the left child had gathered. At the leaves each element holds what precedes it:
// the exclusive scan. An inclusive one combines each result with its own element.
#include "scan/hierarchical.h"

namespace tp::scan {
namespace {

struct Blelloch {
  static constexpr int section = 512, threads = section / 2, scratch = 0;
  static constexpr bool exclusive = true;

  template <class M, class Block, class Array>
  TP_HD static void scan(Block& block, Array s, Array) {
    using Acc = typename M::Acc;
    for (int stride = 1; stride < section; stride *= 2) {
      block.phase("up", [&](int t) {
        const int right = (t + 1) * 2 * stride - 1;
        if (right < section) s[right] = M::combine(s[right - stride], s[right]);
      });
    }
    block.phase("root", [&](int t) {
      if (t == 0) s[section - 1] = M::identity();
    });
    for (int stride = section / 2; stride > 0; stride /= 2) {
      block.phase("down", [&](int t) {
        const int right = (t + 1) * 2 * stride - 1;
        if (right >= section) return;
        const Acc before = s[right], gathered = s[right - stride];
        s[right - stride] = before;
        s[right] = M::combine(before, gathered);
      });
    }
  }
};

}  // namespace

void blelloch(const Args& args, Context& context) { scan_hierarchically<Blelloch>("blelloch", args, context); }

}  // namespace tp::scan
