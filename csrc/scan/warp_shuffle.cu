// Kogge-Stone by warp shuffles (§11.3 and §11.8 point to it): the lanes of a warp exchange registers, so the steps
// within a warp need neither shared memory nor barriers. The last lane of each warp leaves the warp's total, the first
// warp scans the totals, and every lane combines its own with what the warps before it hold.
#include "scan/hierarchical.h"
#ifdef __CUDACC__
#include "block/warp.cuh"

namespace tp::scan {
namespace {

struct WarpShuffle {
  static constexpr int section = 1024, threads = section, scratch = block::warp_size;
  static constexpr bool exclusive = false;

  template <class M, class Block, class Array>
  TP_HD static void scan(Block& block, Array s, Array totals) {
#ifdef __CUDA_ARCH__
    using Acc = typename M::Acc;
    auto own = block.template per_lane<Acc>("own");
    block.phase("warps", [&](int t) {
      own[t] = block::inclusive_scan<M>(s[t]);
      if (t % block::warp_size == block::warp_size - 1) totals[t / block::warp_size] = own[t];
    });
    block.phase("totals", [&](int t) {
      if (t < block::warp_size) totals[t] = block::inclusive_scan<M>(totals[t]);
    });
    block.phase("complete", [&](int t) {
      const int warp = t / block::warp_size;
      s[t] = warp == 0 ? own[t] : M::combine(totals[warp - 1], own[t]);
    });
#endif
  }
};

}  // namespace

void warp_shuffle(const Args& args, Context& context) {
  scan_hierarchically<WarpShuffle>("warp_shuffle", args, context);
}

}  // namespace tp::scan
#endif
