#include "pooling/pooling.h"

namespace tp::pooling {

const char* choose(const Args&, const Device& device) { return device.cuda ? "vectorized" : "threaded"; }

}  // namespace tp::pooling
