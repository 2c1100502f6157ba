// The convergent reduction (Fig. 10.9): two elements a lane, and the tree that halves, in global memory. As in `simple`
// the section is first copied, for the figure overwrites its input.
#include "reduction/halving.h"
#include "reduction/sections.h"

namespace tp::reduction {
namespace {

struct Convergent {
  static constexpr int threads = 256, section = 2 * threads, size = section, place = 0;
  static constexpr bool in_global = true;

  template <class M, class Block, class Array, class X>
  TP_HD static void reduce(Block& block, Array s, const X& x) {
    block.phase("load", [&](int t) {
      s[t] = x(t);
      s[t + threads] = x(t + threads);
    });
    reduce_by_halves<M>(block, s, threads);
  }
};

}  // namespace

void convergent(const Args& args, Context& context) { reduce_by_sections<Convergent>("convergent", args, context); }

}  // namespace tp::reduction
