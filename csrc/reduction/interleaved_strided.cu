// Interleaved addressing by consecutive threads (Mills 2017, "fixing branch divergence").
//
// The tree of `interleaved`, but thread t does the work at element 2 * stride * t. The active threads are the first
// ones, so whole warps become idle together and at most one warp diverges. In exchange, the threads of a warp now
// access shared memory at elements that are 2 * stride apart, which share fewer and fewer banks, and a bank serves one
// thread at a time.
#include "reduction/sections.h"

namespace tp::reduction {
namespace {

template <class Source>
struct InterleavedStridedKernel {
  static constexpr int threads = 256, section = threads, in_shared = threads, in_global = 0;
  using M = typename Source::Monoid;
  Sections<Source> sections;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto input = sections.bind(block);
    const auto input_s = block.template shared<typename M::Acc>("input_s", threads);
    for (int64_t id = block.index().x; id < input.count; id += block.grid().x) {
      block.phase("load", [&](int t) { input_s[t] = input.load(id, t); });
      for (int stride = 1; stride < threads; stride *= 2) {
        block.phase("combine", [&](int t) {
          const int i = 2 * stride * t;
          if (i < threads) input_s[i] = M::combine(input_s[i], input_s[i + stride]);
        });
      }
      block.phase("store", [&](int t) {
        if (t == 0) input.store(id, input_s[0]);
      });
    }
  }
};

}  // namespace

void interleaved_strided(const Args& args, Context& context) {
  reduce_by_sections<InterleavedStridedKernel>("interleaved_strided", args, context);
}

}  // namespace tp::reduction
