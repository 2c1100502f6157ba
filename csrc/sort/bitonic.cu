// Bitonic sort (§13.8: Batcher 1968; 000).
//
// Two sorted halves, the second read backwards, are a bitonic sequence: it rises, then falls. Comparing item i with the
// i-th from the end leaves the lesser half below, and each half bitonic; half-cleaners of strides size / 4, ..., 1 do
// the rest. With the backward read in the first step no comparator points down, and once the stride is within a tile,
// all that follows is too.
#include "sort/network.h"

namespace tp::sort {
namespace {

struct Bitonic {
  static constexpr bool local = true;
  TP_HD static Pair pair(int64_t i, int64_t size, int64_t stride) {
    const int64_t group = i / stride * (2 * stride), low = group + i % stride;
    return {low, 2 * stride == size ? group + size - 1 - i % stride : low + stride};
  }
};

}  // namespace

void bitonic(const Args& args, Context& context) { sort_by_network<Bitonic>("bitonic", args, context); }

}  // namespace tp::sort
