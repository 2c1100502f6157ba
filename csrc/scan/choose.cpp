#include "scan/scan.h"

namespace tp::scan {

const char* choose(const Args&, const Device& device) { return device.cuda ? "decoupled_lookback" : "threaded"; }

}  // namespace tp::scan
