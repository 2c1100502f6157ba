// A thread an edge: one whose source is in the last level labels its target (§15.4, Fig. 15.10). Balanced whatever the
// degrees, but every level looks at all edges. The figure has the sources of the edges in an array; compressed rows do
// not, so a first launch writes them down.
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

// An edge that lies in no row has no source.
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
struct PushEdge {
  G g;
  const typename G::Id* sources;
  uint32_t level;
  int* found;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto out = g.out(block);
    const auto from = block.global("src", sources, g.args.edges);
    const auto levels = g.levels(block, Sharing::idempotent);
    const auto any = block.global("found", found, 1, Sharing::idempotent);
    for_each(block, "push", g.args.edges, [&](int64_t edge) {
      const typename G::Id vertex = from[edge];
      if (vertex < 0) return;
      const uint32_t mine = levels[vertex];
      if (mine != level - 1) return;
      const int64_t neighbor = out[edge];
      if (!is_vertex(neighbor, g.args, edge)) return;
      const uint32_t theirs = levels[neighbor];
      if (theirs != no_level) return;
      levels[neighbor] = level;
      any[0] = 1;
    });
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
      launch(context, "edge_centric", args.edges, PushEdge<G>{g, sources, level, found});
    });
  });
}

}  // namespace tp::graph
