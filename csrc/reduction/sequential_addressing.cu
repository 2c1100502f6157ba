// Sequential addressing (Mills 2017; Hwu, lecture 4.3, "a better reduction kernel"): one element per thread in shared
// memory. In each step, the first half of the remaining elements is combined with the second half.
//
// Invariant: after the step of a stride, the first `stride` elements together are the combination of the whole section.
// The active threads and their addresses are consecutive: there is no divergence until a single warp is left, and there
// are no bank conflicts. Half of the threads only load, which is the waste that `shared_memory` removes. The operator
// must commute. The barrier is outside the divergent branch; the loop in Hwu's lecture has it inside.
#include "reduction/sections.h"

namespace tp::reduction {
namespace {

template <class Source>
struct SequentialAddressingKernel {
  static constexpr int threads = 256, section = threads, in_shared = threads, in_global = 0;
  using M = typename Source::Monoid;
  Sections<Source> sections;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto input = sections.bind(block);
    const auto input_s = block.template shared<typename M::Acc>("input_s", threads);
    for (int64_t id = block.index().x; id < input.count; id += block.grid().x) {
      block.phase("load", [&](int t) { input_s[t] = input.load(id, t); });
      for (int stride = threads / 2; stride >= 1; stride /= 2) {
        block.phase("combine", [&](int t) {
          if (t < stride) input_s[t] = M::combine(input_s[t], input_s[t + stride]);
        });
      }
      block.phase("store", [&](int t) {
        if (t == 0) input.store(id, input_s[0]);
      });
    }
  }
};

}  // namespace

void sequential_addressing(const Args& args, Context& context) {
  reduce_by_sections<SequentialAddressingKernel>("sequential_addressing", args, context);
}

}  // namespace tp::reduction
