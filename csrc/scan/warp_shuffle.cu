// Kogge-Stone by warp shuffles (suggested in §11.3 and §11.8): the threads of a warp exchange registers, so the steps
// within a warp need neither shared memory nor barriers. The last thread of each warp stores the total of the warp, the
// first warp scans the totals, and every thread combines its own value with that of all earlier warps. A barrier
// separates these three phases, because each reads what the previous one wrote.
#include "scan/sections.h"
#ifdef __CUDACC__
#include "block/warp.cuh"

namespace tp::scan {
namespace {

template <class Source>
struct WarpShuffleScanKernel {
  static constexpr int section = 1024, threads = section, in_shared = block::warp_size;
  using M = typename Source::Monoid;
  using Acc = typename M::Acc;
  Sections<Source> sections;

  template <class Block>
  TP_HD void operator()(Block& block) const {
#ifdef __CUDA_ARCH__
    const auto x = sections.bind(block);
    const auto totals = block.template shared<Acc>("totals", block::warp_size);
    auto own = block.template per_lane<Acc>("own");
    for (int64_t id = block.index().x; id < x.count; id += block.grid().x) {
      block.phase("warps", [&](int t) {
        own[t] = block::inclusive_scan<M>(x.load(id, t));
        if (t % block::warp_size == block::warp_size - 1) totals[t / block::warp_size] = own[t];
      });
      block.phase("totals", [&](int t) {
        if (t < block::warp_size) totals[t] = block::inclusive_scan<M>(totals[t]);
      });
      block.phase("store", [&](int t) {
        const int warp = t / block::warp_size;
        const Acc value = warp == 0 ? own[t] : M::combine(totals[warp - 1], own[t]);
        x.store(id, t, value);
        if (t == section - 1) x.store_total(id, value);
      });
    }
#endif
  }
};

}  // namespace

void warp_shuffle(const Args& args, Context& context) {
  scan_by_sections<WarpShuffleScanKernel>("warp_shuffle", args, context);
}

}  // namespace tp::scan
#endif
