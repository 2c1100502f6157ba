// A thread a vertex: those not reached look for a neighbour in the last level and stop at the first (§15.3, Fig. 15.8).
// It takes the edges that enter a vertex; a graph that comes without is turned around first.
#include "graph/dense.h"
#include "graph/in_edges.h"

namespace tp::graph {

void vertex_pull(const Args& args, Context& context) {
  with_graph(with_in_edges(args, context), [&](const auto& g) {
    using G = std::decay_t<decltype(g)>;
    search_dense("vertex_pull", g, context, [&](uint32_t level, int* found) {
      launch(context, "vertex_pull", args.vertices, Pull<G>{g, level, found});
    });
  });
}

}  // namespace tp::graph
