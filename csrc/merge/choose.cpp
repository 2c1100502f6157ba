#include "merge/merge.h"

namespace tp {
namespace merge {

// Rows too short to fill a tile take a thread an output: its search is short as well.
constexpr int64_t short_row = 512;

const char* choose(const Args& args, const Device& device) {
  if (!device.cuda) return "threaded";
  return args.in.m + args.in.n <= short_row ? "uncoarsened" : "merge_path";
}

}  // namespace merge

namespace co_rank_ladder {

const char* choose(const Args&, const Device& device) { return device.cuda ? "thread_per_rank" : "threaded"; }

}  // namespace co_rank_ladder
}  // namespace tp
