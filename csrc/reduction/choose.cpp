#include "reduction/reduction.h"

namespace tp::reduction {

const char* choose(const Args&, const Device& device) { return device.cuda ? "single_pass" : "threaded"; }

}  // namespace tp::reduction
