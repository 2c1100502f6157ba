// Breadth-first search, vertex-centric push or top-down (§15.3, Fig. 15.6): one thread per vertex. A vertex of the
// previous level labels its unvisited neighbours.
//
// Invariant: before a launch, every vertex up to level curr_level - 1 has its level, and all others have no_level
// (UINT_MAX in the figure). Two threads may label the same neighbour; both write the same value, so no atomic operation
// is needed. The end of a launch is the barrier between levels. Every level visits all vertices, and a vertex with many
// edges delays its block. The figure has one thread per vertex; here a block may take several rounds.
#include "graph/search.h"

namespace tp::graph {
namespace {

template <class G>
struct PushKernel {
  G g;
  uint32_t curr_level;
  int* new_vertex_visited;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto out = g.out(block);
    const auto level = g.levels(block, Sharing::idempotent);
    const auto visited = block.global("new_vertex_visited", new_vertex_visited, 1, Sharing::idempotent);
    for (int64_t first = block.index().x * threads; first < g.args.vertices; first += block.grid().x * threads) {
      block.phase("push", [&](int t) {
        const int64_t vertex = first + t;
        if (vertex >= g.args.vertices || uint32_t(level[vertex]) != curr_level - 1) return;
        const int64_t end = out.end(vertex);
        for (int64_t edge = out.begin(vertex); edge < end; ++edge) {
          const int64_t neighbor = out[edge];
          if (!is_vertex(neighbor, g.args, edge)) continue;
          if (uint32_t(level[neighbor]) != no_level) continue;  // the neighbour is visited
          level[neighbor] = curr_level;
          visited[0] = 1;
        }
      });
    }
  }
};

}  // namespace

void vertex_push(const Args& args, Context& context) {
  with_graph(args, [&](const auto& g) {
    using G = std::decay_t<decltype(g)>;
    search_dense("vertex_push", g, context, [&](uint32_t level, int* found) {
      launch(context, "vertex_push", args.vertices, PushKernel<G>{g, level, found});
    });
  });
}

}  // namespace tp::graph
