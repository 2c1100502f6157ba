// Brent-Kung scan of a block, with threads chosen by a remainder (§11.4, Fig. 11.5 and the first loop in the text).
//
// The same two trees as in brent_kung, but the thread that owns an element does its work: at every stride only one
// thread in 2 * stride is active, so the active threads are further and further apart, and nearly every warp diverges.
// brent_kung removes this cost. Invariants and barriers are those of brent_kung. The text gives only the loop of the
// reduction tree; the reverse tree here is its counterpart.
#include "scan/sections.h"

namespace tp::scan {
namespace {

template <class Source>
struct BrentKungModuloScanKernel {
  static constexpr int section = 256, threads = section, in_shared = section;
  using M = typename Source::Monoid;
  using Acc = typename M::Acc;
  Sections<Source> sections;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = sections.bind(block);
    const auto XY = block.template shared<Acc>("XY", section);
    for (int64_t id = block.index().x; id < x.count; id += block.grid().x) {
      block.phase("load", [&](int t) { XY[t] = x.load(id, t); });
      for (int stride = 1; stride < section; stride *= 2) {
        block.phase("reduce", [&](int t) {
          if ((t + 1) % (2 * stride) == 0) XY[t] = M::combine(XY[t - stride], XY[t]);
        });
      }
      for (int stride = section / 4; stride > 0; stride /= 2) {
        block.phase("distribute", [&](int t) {
          if ((t + 1) % (2 * stride) == stride && t > stride) XY[t] = M::combine(XY[t - stride], XY[t]);
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

void brent_kung_modulo(const Args& args, Context& context) {
  scan_by_sections<BrentKungModuloScanKernel>("brent_kung_modulo", args, context);
}

}  // namespace tp::scan
