// Odd-even merge sort (§13.8: Batcher 1968).
//
// To merge two sorted halves, merge their even items and their odd items; then every odd item needs one comparison with
// the next even item. Unrolled, the first step compares across half the group, and the step of each smaller stride
// compares odd multiples of the stride with the even multiples that follow. It needs fewer comparators than bitonic
// sort, but pairs of a short stride may lie in two tiles, so after the first tile every step is its own launch.
#include "sort/network.h"

namespace tp::sort {
namespace {

struct OddEvenMerge {
  static constexpr bool local = false;
  TP_HD static Pair pair(int64_t i, int64_t size, int64_t stride) {
    const int64_t group = i / (size / 2) * size, j = i % (size / 2);
    if (2 * stride == size) return {group + j, group + j + stride};
    const int64_t low = j / stride * (2 * stride) + stride + j % stride;
    // The last `stride` items of a group have no partner in it.
    return {group + low, low + stride < size ? group + low + stride : std::numeric_limits<int64_t>::max()};
  }
};

}  // namespace

void odd_even_merge(const Args& args, Context& context) {
  sort_by_network<OddEvenMerge>("odd_even_merge", args, context);
}

}  // namespace tp::sort
