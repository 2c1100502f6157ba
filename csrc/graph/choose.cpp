#include "graph/graph.h"

namespace tp::graph {

// Searches at once share the edges, but none of their results: on an H200 that pays from some 5 to 16 searches on,
// earlier in small graphs; on host threads, where most time goes into the results, never by much.
const char* choose(const Args& args, const Device& device) {
  if (!device.cuda) return "threaded";
  return args.searches >= 16 && args.in.col_idx != nullptr ? "bit_parallel" : "persistent";
}

}  // namespace tp::graph
