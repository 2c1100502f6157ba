// Breadth-first search, edge-centric (§15.4, Fig. 15.10): one thread per edge. An edge whose source is in the previous
// level labels its destination.
//
// Invariant: before a launch, every vertex up to level curr_level - 1 has its level, and all others have no_level
// (UINT_MAX in the figure). Threads that label the same vertex write the same value, so no atomic operation is needed.
// The end of a launch is the barrier between levels. The work is balanced whatever the degrees, but every level visits
// all edges. The figure stores the source of each edge in an array; compressed rows have no such array, so a first
// launch writes one.
#include "graph/search.h"

namespace tp::graph {
namespace {

template <class G>
struct Sources {
  G g;
  typename G::Id* sources;  // all -1

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto out = g.out(block);
    const auto from = block.global("src", sources, g.args.edges);
    for_each(block, "sources", g.args.vertices, [&](int64_t vertex) {
      const int64_t end = out.end(vertex);
      for (int64_t edge = out.begin(vertex); edge < end; ++edge) from[edge] = typename G::Id(vertex);
    });
  }
};

// An edge that is in no row has no source.
template <class G>
struct NoSources {
  typename G::Id* sources;
  int64_t edges;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto from = block.global("src", sources, edges);
    for_each(block, "clear", edges, [&](int64_t edge) { from[edge] = typename G::Id(-1); });
  }
};

template <class G>
struct EdgeCentricKernel {
  G g;
  const typename G::Id* sources;
  uint32_t curr_level;
  int* new_vertex_visited;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto dst = g.out(block);
    const auto src = block.global("src", sources, g.args.edges);
    const auto level = g.levels(block, Sharing::idempotent);
    const auto visited = block.global("new_vertex_visited", new_vertex_visited, 1, Sharing::idempotent);
    for (int64_t first = block.index().x * threads; first < g.args.edges; first += block.grid().x * threads) {
      block.phase("push", [&](int t) {
        const int64_t edge = first + t;
        if (edge >= g.args.edges) return;
        const typename G::Id vertex = src[edge];
        if (vertex < 0 || uint32_t(level[vertex]) != curr_level - 1) return;
        const int64_t neighbor = dst[edge];
        if (!is_vertex(neighbor, g.args, edge)) return;
        if (uint32_t(level[neighbor]) != no_level) return;  // the neighbour is visited
        level[neighbor] = curr_level;
        visited[0] = 1;
      });
    }
  }
};

}  // namespace

void edge_centric(const Args& args, Context& context) {
  with_graph(args, [&](const auto& g) {
    using G = std::decay_t<decltype(g)>;
    auto* sources = context.workspace<typename G::Id>(args.edges);
    launch(context, "edge_centric", args.edges, NoSources<G>{sources, args.edges});
    launch(context, "edge_centric", args.vertices, Sources<G>{g, sources});
    search_dense("edge_centric", g, context, [&](uint32_t level, int* found) {
      launch(context, "edge_centric", args.edges, EdgeCentricKernel<G>{g, sources, level, found});
    });
  });
}

}  // namespace tp::graph
