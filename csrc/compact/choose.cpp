#include "compact/compact.h"

namespace tp::compact {

const char* choose(const Args&, const Device& device) { return device.cuda ? "single_pass" : "threaded"; }

}  // namespace tp::compact
