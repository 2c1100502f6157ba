#include "merge/merge.h"

namespace tp {

const char* merge::choose(const Args&, const Device& device) { return device.cuda ? "merge_path" : "threaded"; }

const char* co_rank_ladder::choose(const Args&, const Device& device) { return device.cuda ? "staged" : "threaded"; }

}  // namespace tp
