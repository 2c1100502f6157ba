// Reduction by warp shuffles: the lanes of a warp exchange registers, so the steps within a warp need neither shared
// memory nor barriers. Lane 0 of each warp leaves the warp's total, and the first warp reduces the totals: two barriers
// where the tree in shared memory has one a step. Lanes combine with their right neighbours, in order.
#include "reduction/sections.h"
#ifdef __CUDACC__
#include "block/warp.cuh"

namespace tp::reduction {
namespace {

struct WarpShuffle {
  static constexpr int threads = 1024, section = threads, size = block::warp_size, place = 0;
  static constexpr bool in_global = false;

  template <class M, class Block, class Array, class X>
  TP_HD static void reduce(Block& block, Array s, const X& x) {
#ifdef __CUDA_ARCH__
    using Acc = typename M::Acc;
    block.phase("warps", [&](int t) {
      const Acc total = block::reduce<M>(x(t));
      if (t % block::warp_size == 0) s[t / block::warp_size] = total;
    });
    block.phase("totals", [&](int t) {
      if (t >= block::warp_size) return;
      const Acc total = block::reduce<M>(s[t]);
      if (t == 0) s[0] = total;
    });
#endif
  }
};

}  // namespace

void warp_shuffle(const Args& args, Context& context) {
  reduce_by_sections<WarpShuffle>("warp_shuffle", args, context);
}

}  // namespace tp::reduction
#endif
