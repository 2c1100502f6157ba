// Thread coarsening in a scan (§11.5, Fig. 11.8), with the book's example of 64 threads and 16 elements for each.
//
// Phase 1: each thread scans its own subsection of consecutive elements, one after another. Phase 2: the totals of the
// subsections are scanned, here by Kogge-Stone, as in Fig. 11.3. Phase 3: each thread combines its subsection with the
// total of all subsections before it. With far fewer threads than elements that is hardly more than twice the work of
// the sequential scan. Loads and stores go by neighbouring threads, so they are coalesced; the threads' strides through
// their subsections stay in shared memory. A barrier parts the phases, and the two halves of a Kogge-Stone step,
// because each reads what the one before wrote.
//
// The figure scans the last elements of the subsections where they lie. Here they are copied to an array of their own,
// so that phase 2 is Fig. 11.3 without a change.
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
