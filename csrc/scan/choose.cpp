#include "scan/scan.h"

namespace tp::scan {

// The look-back scan takes every size, layout and operator, and is the fastest rung at every size measured, 2^16 to
// 2^28 elements (H200, benchmarks/results/h200_scan.csv).
const char* choose(const Args&, const Device& device) { return device.cuda ? "decoupled_lookback" : "threaded"; }

// In decoupled_lookback the results of contiguous rows are in registers, so their products cost no other pass over
// them. On an H200, a recurrence of 2^26 float32 and its products take 0.36 ms instead of 0.43 as one row.
bool multiplies(std::string_view rung, const Args& args) {
  return rung == "decoupled_lookback" && args.op == OpId::affine && args.inner == 1;
}

}  // namespace tp::scan
