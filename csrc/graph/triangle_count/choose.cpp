#include "graph/triangle_count/triangle_count.h"

namespace tp::triangle_count {

const char* choose(const Args&, const Device& device) { return device.cuda ? "warp_per_edge" : "threaded"; }

}  // namespace tp::triangle_count
