// Blelloch scan of a block (Blelloch 1990: up-sweep and down-sweep), which is exclusive by nature.
//
// Up-sweep: as in any reduction tree, the last element of every subtree of 2 * stride elements becomes the combination
// of the subtree. Then the root is set to the identity. Down-sweep: before the step of a stride, the last element of
// every such subtree holds the combination of everything before the subtree (the invariant). The step passes it on to
// the left child unchanged, and to the right child combined with the sum of the left child. At the leaves, each element
// holds the combination of everything before it, which is the exclusive scan. A barrier separates the steps, because
// each reads what the previous one wrote. An inclusive scan combines each result with its own element.
#include "scan/sections.h"

namespace tp::scan {
namespace {

template <class Source>
struct BlellochScanKernel {
  static constexpr int section = 512, threads = section / 2, in_shared = section;
  using M = typename Source::Monoid;
  using Acc = typename M::Acc;
  Sections<Source> sections;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = sections.bind(block);
    const auto XY = block.template shared<Acc>("XY", section);
    for (int64_t id = block.index().x; id < x.count; id += block.grid().x) {
      block.phase("load", [&](int t) {
        XY[t] = x.element(id, t);
        XY[t + threads] = x.element(id, t + threads);
      });
      for (int stride = 1; stride < section; stride *= 2) {
        block.phase("up", [&](int t) {
          const int right = (t + 1) * 2 * stride - 1;
          if (right < section) XY[right] = M::combine(XY[right - stride], XY[right]);
        });
      }
      block.phase("root", [&](int t) {
        if (t == 0) XY[section - 1] = M::identity();
      });
      for (int stride = section / 2; stride > 0; stride /= 2) {
        block.phase("down", [&](int t) {
          const int right = (t + 1) * 2 * stride - 1;
          if (right >= section) return;
          const Acc before = XY[right], gathered = XY[right - stride];
          XY[right - stride] = before;
          XY[right] = M::combine(before, gathered);
        });
      }
      block.phase("store", [&](int t) {
        for (int i = t; i < section; i += threads) {
          const Acc before = XY[i], inclusive = M::combine(before, x.element(id, i));
          x.store(id, i, sections.source.exclusive ? before : inclusive);
          if (i == section - 1) x.store_total(id, inclusive);
        }
      });
    }
  }
};

}  // namespace

void blelloch(const Args& args, Context& context) { scan_by_sections<BlellochScanKernel>("blelloch", args, context); }

}  // namespace tp::scan
