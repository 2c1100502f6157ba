// Sklansky scan of a block: divide and conquer (Sklansky, 1960), the third of the classic circuits.
//
// Invariant: before the step of a stride, every group of `stride` elements is scanned. The step joins the groups in
// pairs: each element of the second group is combined with the last element of the first. That element is only read,
// because it is in a first group, and an element that is written is read only by its own thread. So the scan is in
// place, with one barrier per step. It takes the fewest steps, with half of Kogge-Stone's work, but one element is read
// by many threads.
#include "scan/sections.h"

namespace tp::scan {
namespace {

template <class Source>
struct SklanskyScanKernel {
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
      for (int stride = 1; stride < section; stride *= 2) {
        block.phase("join", [&](int t) {
          const int second = (t / stride * 2 + 1) * stride, index = second + t % stride;
          XY[index] = M::combine(XY[second - 1], XY[index]);
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

void sklansky(const Args& args, Context& context) { scan_by_sections<SklanskyScanKernel>("sklansky", args, context); }

}  // namespace tp::scan
