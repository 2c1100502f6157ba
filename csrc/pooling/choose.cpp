#include "pooling/pooling.h"

namespace tp::pooling {

const char* choose(const Args&, const Device& device) { return device.cuda ? "thread_per_output" : "threaded"; }

}  // namespace tp::pooling
