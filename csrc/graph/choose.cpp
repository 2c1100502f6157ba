#include "graph/graph.h"

namespace tp::graph {

const char* choose(const Args&, const Device& device) { return device.cuda ? "bucketed" : "sequential"; }

}  // namespace tp::graph
