// Kogge-Stone scan of a block (§11.2, Figs. 11.2 to 11.4).
//
// Invariant: after the step of a stride, XY[t] combines the 2 * stride elements that end at t (fewer near the start). A
// thread keeps its new value in `temp` until every thread has read. The barrier between `read` and `write` keeps a
// thread from reading a neighbour's new value, and the barrier after `write` keeps the next step from reading an old
// one. An exclusive scan loads the previous element (Fig. 11.4); everything else is the same.
//
// Fig. 11.3 adds (own, left). Here the left operand comes first, because it is the earlier one, and operators need not
// commute.
#include "scan/sections.h"

namespace tp::scan {
namespace {

template <class Source>
struct KoggeStoneScanKernel {
  static constexpr int section = 256, threads = section, in_shared = section;
  using M = typename Source::Monoid;
  using Acc = typename M::Acc;
  Sections<Source> sections;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = sections.bind(block);
    const auto XY = block.template shared<Acc>("XY", section);
    auto temp = block.template per_lane<Acc>("temp");
    for (int64_t id = block.index().x; id < x.count; id += block.grid().x) {
      block.phase("load", [&](int t) { XY[t] = x.load(id, t); });
      for (int stride = 1; stride < section; stride *= 2) {
        block.phase("read", [&](int t) {
          if (t >= stride) temp[t] = M::combine(XY[t - stride], XY[t]);
        });
        block.phase("write", [&](int t) {
          if (t >= stride) XY[t] = temp[t];
        });
      }
      block.phase("store", [&](int t) {
        x.store(id, t, XY[t]);
        if (t == section - 1) x.store_total(id, XY[t]);
      });
    }
  }
};

}  // namespace

void kogge_stone(const Args& args, Context& context) {
  scan_by_sections<KoggeStoneScanKernel>("kogge_stone", args, context);
}

}  // namespace tp::scan
