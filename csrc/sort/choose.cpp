#include "sort/sort.h"

// onesweep takes every size and dtype on CUDA; within it, the length of the rows decides how they are sorted.
const char* tp::sort::choose(const Args&, const Device& device) { return device.cuda ? "onesweep" : "threaded"; }

const char* tp::segment_sort::choose(const Args&, const Device& device) {
  return device.cuda ? "balanced" : "threaded";
}
