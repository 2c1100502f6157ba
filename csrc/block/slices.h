// The second half of a sum that many blocks share. The blocks leave sums over slices, [slices][n]; here these are added
// up, in an order that depends only on the numbers of slices and sums, and rounded once.
#pragma once
#include <limits>

#include "core/context.h"
#include "core/dtype.h"

namespace tp::block {

// The number of slices that takes the least time if each of `tiles` blocks becomes as many, and `together` blocks run
// at once: as many waves of blocks as needed, each as long as a slice and what begins and ends it. That takes about as
// long as `ends` of the `steps` which are divided.
inline int64_t fastest_slices(int64_t tiles, int64_t steps, int64_t ends, int64_t together) {
  int64_t best = 1, least = std::numeric_limits<int64_t>::max();
  for (int64_t slices = 1; slices <= min(steps, together); ++slices) {
    const int64_t time = ceil_div(tiles * slices, together) * (ceil_div(steps, slices) + ends);
    if (time < least) best = slices, least = time;
  }
  return best;
}

// out[i] is the sum of the slices' sums i. It is compiled once for all, because a kernel that several files compile
// must not have other devices in one of them (*_sm90a.cu) than in the rest.
template <class T>
void sum_slices(const acc_t<T>* sums, int64_t slices, int64_t n, T* out, Context& context);

}  // namespace tp::block
