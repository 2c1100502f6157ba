#include "graph/sssp/sssp.h"

namespace tp::sssp {

// On the host, no level of a search is wide enough for its barrier to pay before graphs outgrow the cache: the heap
// visits every edge once.
const char* choose(const Args&, const Device& device) { return device.cuda ? "near_far" : "radix_heap"; }

}  // namespace tp::sssp
