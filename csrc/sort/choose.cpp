#include "sort/sort.h"

const char* tp::sort::choose(const Args&, const Device& device) { return device.cuda ? "onesweep" : "threaded"; }

const char* tp::segment_sort::choose(const Args&, const Device& device) {
  return device.cuda ? "balanced" : "threaded";
}
