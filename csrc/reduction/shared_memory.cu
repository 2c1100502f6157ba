// The reduction in shared memory (Fig. 10.11; Mills 2017, "add during load").
//
// A thread combines two elements, half a section apart, as it loads them from global memory. So every thread takes part
// in the first step, each element is read from global memory once, and the input is not overwritten. The other steps
// are those of `convergent` in shared memory. Invariant: after the step of a stride, the first `stride` elements of
// input_s together are the combination of the whole section. The operator must commute.
//
// In the figure the barrier is at the beginning of a step; here it ends the phase before, which is the same.
#include "reduction/sections.h"

namespace tp::reduction {
namespace {

template <class Source>
struct SharedMemoryReductionKernel {
  static constexpr int threads = 256, section = 2 * threads, in_shared = threads, in_global = 0;
  using M = typename Source::Monoid;
  Sections<Source> sections;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto input = sections.bind(block);
    const auto input_s = block.template shared<typename M::Acc>("input_s", threads);
    for (int64_t id = block.index().x; id < input.count; id += block.grid().x) {
      block.phase("load", [&](int t) { input_s[t] = M::combine(input.load(id, t), input.load(id, t + threads)); });
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

void shared_memory(const Args& args, Context& context) {
  reduce_by_sections<SharedMemoryReductionKernel>("shared_memory", args, context);
}

}  // namespace tp::reduction
