// Reduction by warp shuffles: the threads of a warp exchange registers, so the steps within a warp need neither shared
// memory nor barriers. Thread 0 of each warp leaves the warp's total, and the first warp reduces the totals: two
// barriers where the tree in shared memory has one per step. Threads combine with their right neighbours, in order.
#include "reduction/sections.h"
#ifdef __CUDACC__
#include "block/warp.cuh"

namespace tp::reduction {
namespace {

template <class Source>
struct WarpShuffleKernel {
  static constexpr int threads = 1024, section = threads, in_shared = block::warp_size, in_global = 0;
  using M = typename Source::Monoid;
  using Acc = typename M::Acc;
  Sections<Source> sections;

  template <class Block>
  TP_HD void operator()(Block& block) const {
#ifdef __CUDA_ARCH__
    const auto input = sections.bind(block);
    const auto totals = block.template shared<Acc>("totals", block::warp_size);
    for (int64_t id = block.index().x; id < input.count; id += block.grid().x) {
      block.phase("warps", [&](int t) {
        const Acc total = block::reduce<M>(input.load(id, t));
        if (t % block::warp_size == 0) totals[t / block::warp_size] = total;
      });
      block.phase("totals", [&](int t) {
        if (t >= block::warp_size) return;
        const Acc total = block::reduce<M>(totals[t]);
        if (t == 0) input.store(id, total);
      });
    }
#endif
  }
};

}  // namespace

void warp_shuffle(const Args& args, Context& context) {
  reduce_by_sections<WarpShuffleKernel>("warp_shuffle", args, context);
}

}  // namespace tp::reduction
#endif
