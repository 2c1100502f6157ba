// Bitonic sort (§13.8: Batcher 1968).
//
// Two sorted halves, the second read backwards, form a bitonic sequence: it rises, then falls. The first step compares
// item i with the i-th item from the end, which leaves the smaller items in the first half, and each half bitonic;
// half-cleaners of strides size / 4, ..., 1 do the rest. Because the first step reads the second half backwards, all
// comparators order upwards. As soon as the stride fits in a tile, one launch takes all remaining strides in shared
// memory.
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
