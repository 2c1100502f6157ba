// The reduction in shared memory (Fig. 10.11; 001, "add during load").
//
// A lane combines two elements half a section apart on their way from global memory, so every lane does the first step;
// the tree that halves does the others on the `threads` results. Each element is read from global memory once and the
// input stays as it is. The figure puts its barrier at the head of a step, here it ends the phase before.
#include "reduction/halving.h"
#include "reduction/sections.h"

namespace tp::reduction {
namespace {

struct SharedMemory {
  static constexpr int threads = 256, section = 2 * threads, size = threads, place = 0;
  static constexpr bool in_global = false;

  template <class M, class Block, class Array, class X>
  TP_HD static void reduce(Block& block, Array s, const X& x) {
    block.phase("load", [&](int t) { s[t] = M::combine(x(t), x(t + threads)); });
    reduce_by_halves<M>(block, s, threads / 2);
  }
};

}  // namespace

void shared_memory(const Args& args, Context& context) {
  reduce_by_sections<SharedMemory>("shared_memory", args, context);
}

}  // namespace tp::reduction
