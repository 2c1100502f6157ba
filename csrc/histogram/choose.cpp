#include "histogram/histogram.h"

namespace tp::histogram {

// Replicated counters take any number of bins. 2^26 uniform int32 in 2^16 bins take 0.135 ms, where CUB takes 2.49
// (H200, benchmarks/results/h200_limits.md).
const char* choose(const Args&, const Device& device) { return device.cuda ? "replicated" : "threaded"; }

}  // namespace tp::histogram
