#include "reduction/reduction.h"

namespace tp::reduction {

// The single pass takes every size, layout and operator. It reads 2^28 float32 at the rate of a copy, as CUB does, and
// is the fastest of CUB, torch and itself for 2^16 and 2^20 (H200, benchmarks/results/h200_figures.csv).
const char* choose(const Args&, const Device& device) { return device.cuda ? "single_pass" : "threaded"; }

}  // namespace tp::reduction
