#include "graph/graph.h"

namespace tp::graph {

const char* choose(const Args&, const Device& device) { return device.cuda ? "persistent" : "threaded"; }

}  // namespace tp::graph
