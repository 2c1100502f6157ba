// Brent-Kung scan of a block (§11.4, Figs. 11.5 to 11.7; ECE 408, lecture 17).
//
// Reduction tree: after the step of a stride, every index that is a multiple of 2 * stride, minus 1, holds the
// combination of the 2 * stride elements that end there. Reverse tree, with decreasing strides: such an index holds a
// finished prefix, which finishes the element `stride` positions to the right. A barrier separates the steps, because
// each reads what the previous one wrote. Consecutive threads do the work of a step, so warps do not diverge until less
// than a warp of additions is left. Half as many threads as elements are enough; each loads two.
//
// Fig. 11.7 combines (later, earlier); here the earlier operand comes first.
#include "scan/sections.h"

namespace tp::scan {
namespace {

template <class Source>
struct BrentKungScanKernel {
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
        XY[t] = x.load(id, t);
        XY[t + threads] = x.load(id, t + threads);
      });
      for (int stride = 1; stride <= threads; stride *= 2) {
        block.phase("reduce", [&](int t) {
          const int index = (t + 1) * 2 * stride - 1;
          if (index < section) XY[index] = M::combine(XY[index - stride], XY[index]);
        });
      }
      for (int stride = section / 4; stride > 0; stride /= 2) {
        block.phase("distribute", [&](int t) {
          const int index = (t + 1) * stride * 2 - 1;
          if (index + stride < section) XY[index + stride] = M::combine(XY[index], XY[index + stride]);
        });
      }
      block.phase("store", [&](int t) {
        x.store(id, t, XY[t]);
        x.store(id, t + threads, XY[t + threads]);
        if (t == 0) x.store_total(id, XY[section - 1]);
      });
    }
  }
};

}  // namespace

void brent_kung(const Args& args, Context& context) {
  scan_by_sections<BrentKungScanKernel>("brent_kung", args, context);
}

}  // namespace tp::scan
