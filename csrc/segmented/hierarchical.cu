// The segmented scan by the three kernels of the scan (§11.6, Fig. 11.9), over pairs of a head flag and a value, so the
// kernels need not know about segments. The driver of block/scan_sections.h, whose rows are the columns here, scans the
// sections by the kernel below (Fig. 11.8), scans their totals in the same way, and combines them. Bisection of the
// offsets tells whether a row begins a segment.
//
// Phase 1: each thread scans its own subsection. Phase 2: Kogge-Stone scans the totals of the subsections (Fig. 11.3).
// Phase 3: each thread combines its subsection with the total of all earlier ones. A barrier separates the phases, and
// the two halves of each Kogge-Stone step, because each reads what the previous one wrote.
#include "block/scan_sections.h"
#include "segmented/scan_elements.h"

namespace tp::segment_scan {
namespace {

template <class Source>
struct SegmentedScanKernel {
  using M = typename Source::Monoid;
  using Acc = typename M::Acc;
  // Pairs of maps and flags are large, and a section of them must fit in shared memory.
  static constexpr int threads = sizeof(Acc) > 16 ? 128 : 256, subsection = 9, section = threads * subsection;
  static constexpr int in_shared = section + threads;
  block::Sections<Source> sections;

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

void hierarchical(const Args& args, Context& context) {
  segmented::with_scan<acc_t, narrow_t>(
      args, [&](auto elements) { block::scan_rows<SegmentedScanKernel>(context, "hierarchical", elements); });
}

}  // namespace tp::segment_scan
