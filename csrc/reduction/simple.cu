// The simple reduction (Fig. 10.6; Hwu, lecture 4.2, "a basic reduction kernel").
//
// Thread t owns element i = 2t, and no other thread writes there. Invariant: after the step of a stride, every element
// whose index is a multiple of 2 * stride combines the 2 * stride elements that begin there. The barrier after a step
// lets the next one read what neighbours wrote. All threads are active in the first step; then the active ones are
// further and further apart, so warps diverge, and accesses to global memory are not coalesced.
//
// The figure reduces its input in place. An operator must not change its inputs, so a block first copies its section to
// a workspace, padded with the identity because n is arbitrary.
#include "reduction/sections.h"

namespace tp::reduction {
namespace {

template <class Source>
struct SimpleReductionKernel {
  static constexpr int threads = 256, section = 2 * threads, in_shared = 0, in_global = section;
  using M = typename Source::Monoid;
  Sections<Source> sections;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = sections.bind(block);
    const auto input = block.global("input", sections.workspace + block.index().x * section, section);
    for (int64_t id = block.index().x; id < x.count; id += block.grid().x) {
      block.phase("copy", [&](int t) {
        const int i = 2 * t;
        input[i] = x.load(id, i);
        input[i + 1] = x.load(id, i + 1);
      });
      for (int stride = 1; stride <= threads; stride *= 2) {
        block.phase("combine", [&](int t) {
          const int i = 2 * t;
          if (t % stride == 0) input[i] = M::combine(input[i], input[i + stride]);
        });
      }
      block.phase("store", [&](int t) {
        if (t == 0) x.store(id, input[0]);
      });
    }
  }
};

}  // namespace

void simple(const Args& args, Context& context) { reduce_by_sections<SimpleReductionKernel>("simple", args, context); }

}  // namespace tp::reduction
