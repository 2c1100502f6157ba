// The convergent reduction (Fig. 10.9): the active threads are always the first ones.
//
// Thread t owns element i = t, and combines it with the element one stride to its right; the stride halves. Invariant:
// after the step of a stride, the first `stride` elements together are the combination of the whole section. No thread
// reads what another thread writes in the same step, so one barrier per step is enough. Whole warps become idle
// together, and the addresses of a step are consecutive. An element is first combined with one that is half a section
// away, so the operator must commute.
//
// As in `simple`, a block works on a copy of its section, because the figure overwrites its input.
#include "reduction/sections.h"

namespace tp::reduction {
namespace {

template <class Source>
struct ConvergentReductionKernel {
  static constexpr int threads = 256, section = 2 * threads, in_shared = 0, in_global = section;
  using M = typename Source::Monoid;
  Sections<Source> sections;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = sections.bind(block);
    const auto input = block.global("input", sections.workspace + block.index().x * section, section);
    for (int64_t id = block.index().x; id < x.count; id += block.grid().x) {
      block.phase("copy", [&](int t) {
        input[t] = x.load(id, t);
        input[t + threads] = x.load(id, t + threads);
      });
      for (int stride = threads; stride >= 1; stride /= 2) {
        block.phase("combine", [&](int t) {
          const int i = t;
          if (t < stride) input[i] = M::combine(input[i], input[i + stride]);
        });
      }
      block.phase("store", [&](int t) {
        if (t == 0) x.store(id, input[0]);
      });
    }
  }
};

}  // namespace

void convergent(const Args& args, Context& context) {
  reduce_by_sections<ConvergentReductionKernel>("convergent", args, context);
}

}  // namespace tp::reduction
