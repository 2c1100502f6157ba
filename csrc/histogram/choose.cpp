#include "histogram/histogram.h"

namespace tp::histogram {

const char* choose(const Args&, const Device& device) { return device.cuda ? "replicated" : "threaded"; }

}  // namespace tp::histogram
