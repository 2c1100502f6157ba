#include "segmented/matmul.h"
#include "segmented/segmented.h"

namespace tp::segment_reduce {

// merge_path costs the same whatever the lengths of the segments.
const char* choose(const Args&, const Device& device) { return device.cuda ? "merge_path" : "threaded"; }

}  // namespace tp::segment_reduce

namespace tp::segment_scan {

// decoupled_lookback reads and writes each row once, whatever the lengths of the segments.
const char* choose(const Args&, const Device& device) { return device.cuda ? "decoupled_lookback" : "threaded"; }

}  // namespace tp::segment_scan

namespace tp::segment_matmul {

const char* choose(const Args&, const Device&) { return "gemm"; }

}  // namespace tp::segment_matmul
