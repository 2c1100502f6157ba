// A queue of its own for each block, so that blocks seldom meet at the size of the one they share (§15.6, Fig. 15.14).
#include "graph/privatized.h"

namespace tp::graph {

void privatized_frontier(const Args& args, Context& context) {
  with_graph(args, [&](const auto& g) {
    search_queued("privatized_frontier", g, context,
                  [&](int64_t level, const auto& from, int64_t size, const auto& to) {
                    push_privatized("privatized_frontier", g, context, level, from, size, to);
                    return level + 1;
                  });
  });
}

}  // namespace tp::graph
