#include "reduction/reduction.h"

namespace tp::reduction {

const char* choose(const Args&, const Device& device) { return device.cuda ? "warp_shuffle" : "threaded"; }

}  // namespace tp::reduction
