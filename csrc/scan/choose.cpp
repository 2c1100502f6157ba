#include "scan/scan.h"

namespace tp::scan {

// The look-back scan takes every size, layout and operator, and is the fastest rung at every size measured, 2^16 to
// 2^28 elements (H200, benchmarks/results/h200_scan.csv).
const char* choose(const Args&, const Device& device) { return device.cuda ? "decoupled_lookback" : "threaded"; }

}  // namespace tp::scan
