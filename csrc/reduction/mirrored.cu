// The convergent reduction from the other end (exercise 10.3).
//
// Thread t owns element i = t + threads, in the second half of the section, and combines it with the element one stride
// to its left; the first threads become idle. Invariant: after the step of a stride, the last `stride` elements
// together are the combination of the whole section, so the last element ends with the result. Divergence and
// coalescing are as in `convergent`, and so are the copy of the section and the need for an operator that commutes.
#include "reduction/sections.h"

namespace tp::reduction {
namespace {

template <class Source>
struct MirroredReductionKernel {
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
          const int i = t + threads;
          if (t >= threads - stride) input[i] = M::combine(input[i - stride], input[i]);
        });
      }
      block.phase("store", [&](int t) {
        if (t == 0) x.store(id, input[section - 1]);
      });
    }
  }
};

}  // namespace

void mirrored(const Args& args, Context& context) {
  reduce_by_sections<MirroredReductionKernel>("mirrored", args, context);
}

}  // namespace tp::reduction
