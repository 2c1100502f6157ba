// Breadth-first search, vertex-centric pull or bottom-up (§15.3, Fig. 15.8): one thread per vertex. An unvisited vertex
// looks for a neighbour in the previous level, and stops at the first one.
//
// The kernel reads the edges that enter a vertex; for a graph without them they are built first. Invariant: before a
// launch, every vertex up to level curr_level - 1 has its level, and all others have no_level (UINT_MAX in the figure).
// Only its own thread labels a vertex. Other threads may read the level meanwhile, as no_level or as curr_level;
// neither is the previous level, so the race is harmless (idempotent). The end of a launch is the barrier between
// levels. The figure has one thread per vertex; here a block may take several rounds.
#include "graph/in_edges.h"
#include "graph/search.h"

namespace tp::graph {
namespace {

template <class G>
struct PullKernel {
  G g;
  uint32_t curr_level;
  int* new_vertex_visited;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto in = g.in(block);
    const auto level = g.levels(block, Sharing::idempotent);
    const auto visited = block.global("new_vertex_visited", new_vertex_visited, 1, Sharing::idempotent);
    for (int64_t first = block.index().x * threads; first < g.args.vertices; first += block.grid().x * threads) {
      block.phase("pull", [&](int t) {
        const int64_t vertex = first + t;
        if (vertex >= g.args.vertices || uint32_t(level[vertex]) != no_level) return;
        const int64_t end = in.end(vertex);
        for (int64_t edge = in.begin(vertex); edge < end; ++edge) {
          const int64_t neighbor = in[edge];
          if (!is_vertex(neighbor, g.args, edge)) continue;
          if (uint32_t(level[neighbor]) != curr_level - 1) continue;
          level[vertex] = curr_level;
          visited[0] = 1;
          break;
        }
      });
    }
  }
};

}  // namespace

void vertex_pull(const Args& args, Context& context) {
  with_graph(with_in_edges(args, context), [&](const auto& g) {
    using G = std::decay_t<decltype(g)>;
    search_dense("vertex_pull", g, context, [&](uint32_t level, int* found) {
      launch(context, "vertex_pull", args.vertices, PullKernel<G>{g, level, found});
    });
  });
}

}  // namespace tp::graph
