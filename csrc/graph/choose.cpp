#include "graph/graph.h"

namespace tp::graph {

// Searches in one batch share the visits of edges but not the writing of results. On an H200, a batch is faster from
// about 5 to 16 searches on, earlier in small graphs. On host threads writing the results dominates, and a batch never
// saves much.
const char* choose(const Args& args, const Device& device) {
  if (!device.cuda) return "threaded";
  return args.searches >= 16 && args.in.col_idx != nullptr ? "bit_parallel" : "persistent";
}

}  // namespace tp::graph
