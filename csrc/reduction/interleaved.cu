// Interleaved addressing (Mills 2017, the first kernel): one element per thread, in shared memory.
//
// Invariant: after the step of a stride, every element whose index is a multiple of 2 * stride combines the 2 * stride
// elements that begin there. The active threads are these multiples, found by a remainder: from the first step on,
// every warp has idle threads, and all warps stay busy to the end. The barrier after a step lets the next one read what
// neighbours wrote. Neighbours are combined in order, so the operator need not commute.
#include "reduction/sections.h"

namespace tp::reduction {
namespace {

template <class Source>
struct InterleavedKernel {
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
          if (t % (2 * stride) == 0) input_s[t] = M::combine(input_s[t], input_s[t + stride]);
        });
      }
      block.phase("store", [&](int t) {
        if (t == 0) input.store(id, input_s[0]);
      });
    }
  }
};

}  // namespace

void interleaved(const Args& args, Context& context) {
  reduce_by_sections<InterleavedKernel>("interleaved", args, context);
}

}  // namespace tp::reduction
