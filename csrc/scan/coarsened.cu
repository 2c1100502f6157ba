// Thread coarsening in a scan (§11.5, Fig. 11.8), with the book's example of 64 threads with 16 elements each.
//
// Phase 1: each thread scans its own subsection of consecutive elements sequentially. Phase 2: the totals of the
// subsections are scanned by Kogge-Stone, as in Fig. 11.3. Phase 3: each thread combines its subsection with the total
// of all earlier subsections. With far fewer threads than elements, this is hardly more than twice the work of the
// sequential scan. Neighbouring threads load and store neighbouring elements, so global accesses are coalesced; only
// accesses to shared memory go through the subsections. A barrier separates the phases, and the two halves of each
// Kogge-Stone step, because each reads what the previous one wrote.
//
// The figure scans the last elements of the subsections in place. Here they are copied to an array of their own, so
// that phase 2 is exactly Fig. 11.3.
#include "scan/sections.h"

namespace tp::scan {
namespace {

template <class Source>
struct CoarsenedScanKernel {
  static constexpr int threads = 64, subsection = 16, section = threads * subsection, in_shared = section + threads;
  using M = typename Source::Monoid;
  using Acc = typename M::Acc;
  Sections<Source> sections;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = sections.bind(block);
    const auto XY = block.template shared<Acc>("XY", section);
    const auto totals = block.template shared<Acc>("totals", threads);
    auto temp = block.template per_lane<Acc>("temp");
    for (int64_t id = block.index().x; id < x.count; id += block.grid().x) {
      block.phase("load", [&](int t) {
        for (int i = t; i < section; i += threads) XY[i] = x.load(id, i);
      });
      block.phase("phase_1", [&](int t) {
        const int first = t * subsection;
        Acc sum = XY[first];
        for (int i = first + 1; i < first + subsection; ++i) {
          sum = M::combine(sum, XY[i]);
          XY[i] = sum;
        }
        totals[t] = sum;
      });
      for (int stride = 1; stride < threads; stride *= 2) {
        block.phase("phase_2_read", [&](int t) {
          if (t >= stride) temp[t] = M::combine(totals[t - stride], totals[t]);
        });
        block.phase("phase_2_write", [&](int t) {
          if (t >= stride) totals[t] = temp[t];
        });
      }
      block.phase("phase_3", [&](int t) {
        if (t == 0) return;
        const Acc before = totals[t - 1];
        for (int i = t * subsection; i < (t + 1) * subsection; ++i) XY[i] = M::combine(before, XY[i]);
      });
      block.phase("store", [&](int t) {
        for (int i = t; i < section; i += threads) x.store(id, i, XY[i]);
        if (t == 0) x.store_total(id, XY[section - 1]);
      });
    }
  }
};

}  // namespace

void coarsened(const Args& args, Context& context) {
  scan_by_sections<CoarsenedScanKernel>("coarsened", args, context);
}

}  // namespace tp::scan
