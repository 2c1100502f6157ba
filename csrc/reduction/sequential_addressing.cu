// Sequential addressing (001; 003): an element a lane in shared memory, and the tree that halves. Half of the lanes do
// nothing but load: that waste is what `shared_memory` removes.
#include "reduction/halving.h"
#include "reduction/sections.h"

namespace tp::reduction {
namespace {

struct SequentialAddressing {
  static constexpr int threads = 256, section = threads, size = section, place = 0;
  static constexpr bool in_global = false;

  template <class M, class Block, class Array, class X>
  TP_HD static void reduce(Block& block, Array s, const X& x) {
    block.phase("load", [&](int t) { s[t] = x(t); });
    reduce_by_halves<M>(block, s, threads / 2);
  }
};

}  // namespace

void sequential_addressing(const Args& args, Context& context) {
  reduce_by_sections<SequentialAddressing>("sequential_addressing", args, context);
}

}  // namespace tp::reduction
