// A thread a vertex: those of the last level label their neighbours (§15.3, Fig. 15.6). Every level looks at all
// vertices, and a vertex with many edges holds up its block.
#include "graph/dense.h"

namespace tp::graph {

void vertex_push(const Args& args, Context& context) {
  with_graph(args, [&](const auto& g) {
    using G = std::decay_t<decltype(g)>;
    search_dense("vertex_push", g, context, [&](uint32_t level, int* found) {
      launch(context, "vertex_push", args.vertices, Push<G>{g, level, found});
    });
  });
}

}  // namespace tp::graph
