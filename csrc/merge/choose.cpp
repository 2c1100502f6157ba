#include "merge/merge.h"

namespace tp {

// Merge path takes every size and row length. It merges 2^20 to 2^28 int32 in 0.62 to 0.95 times CUB's time (H200,
// benchmarks/results/h200_figures.csv).
const char* merge::choose(const Args&, const Device& device) { return device.cuda ? "merge_path" : "threaded"; }

const char* co_rank_ladder::choose(const Args&, const Device& device) { return device.cuda ? "staged" : "threaded"; }

}  // namespace tp
