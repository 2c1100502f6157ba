#include "compact/compact.h"

namespace tp::compact {

// The single pass takes rows of every size. Packing 2^26 float32 takes 0.104 to 0.184 ms, depending on how many are
// kept, and CUB 0.184 to 0.227 (H200, benchmarks/results/h200_limits.md).
const char* choose(const Args&, const Device& device) { return device.cuda ? "single_pass" : "threaded"; }

}  // namespace tp::compact
