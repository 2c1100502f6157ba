// Push while few edges leave the frontier, pull when many do (§15.3, exercise 15.2).
//
// The rule is that of Beamer, Asanović and Patterson (2012): change to pulling when more than 1 / 15 as many edges
// leave the frontier as leave unreached vertices; change back to pushing when the frontier shrinks and is smaller than
// 1 / 18 of the vertices. A third kernel counts the vertices and edges that the rule needs.
#include "graph/in_edges.h"
#include "graph/search.h"

namespace tp::graph {
namespace {

constexpr int64_t alpha = 15, beta = 18;

// One level, pushed from the vertices of the previous one (Fig. 15.6). Two threads may label the same vertex; both
// write the same value.
template <class G>
struct Push {
  G g;
  uint32_t level;
  int* found;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto out = g.out(block);
    const auto levels = g.levels(block, Sharing::idempotent);
    const auto any = block.global("found", found, 1, Sharing::idempotent);
    for_each(block, "push", g.args.vertices, [&](int64_t vertex) {
      const uint32_t mine = levels[vertex];
      if (mine != level - 1) return;
      const int64_t end = out.end(vertex);
      for (int64_t edge = out.begin(vertex); edge < end; ++edge) {
        const int64_t neighbor = out[edge];
        if (!is_vertex(neighbor, g.args, edge)) continue;
        const uint32_t theirs = levels[neighbor];
        if (theirs != no_level) continue;
        levels[neighbor] = level;
        any[0] = 1;
      }
    });
  }
};

// One level, pulled by the vertices that are not reached (Fig. 15.8). A thread that reads a level while it is being
// written sees either "unreached" or this level, neither of which is the previous level, so the race is harmless.
template <class G>
struct Pull {
  G g;
  uint32_t level;
  int* found;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto in = g.in(block);
    const auto levels = g.levels(block, Sharing::idempotent);
    const auto any = block.global("found", found, 1, Sharing::idempotent);
    for_each(block, "pull", g.args.vertices, [&](int64_t vertex) {
      const uint32_t mine = levels[vertex];
      if (mine != no_level) return;
      const int64_t end = in.end(vertex);
      for (int64_t edge = in.begin(vertex); edge < end; ++edge) {
        const int64_t neighbor = in[edge];
        if (!is_vertex(neighbor, g.args, edge)) continue;
        const uint32_t theirs = levels[neighbor];
        if (theirs != level - 1) continue;
        levels[vertex] = level;
        any[0] = 1;
        break;
      }
    });
  }
};

struct Counts {
  int64_t vertices, edges;
};

// Counts the vertices of a level and the edges that leave them.
template <class G>
struct Count {
  G g;
  uint32_t level;
  int64_t* counts;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto out = g.out(block);
    const auto levels = g.levels(block);
    const auto sums = block.global("counts", counts, 2);
    for_each(block, "count", g.args.vertices, [&](int64_t vertex) {
      const uint32_t mine = levels[vertex];
      if (mine != level) return;
      sums.template atomic<Sum<int64_t>>(0, 1);
      sums.template atomic<Sum<int64_t>>(1, out.degree(vertex));
    });
  }
};

template <class G>
Counts count(const G& g, uint32_t level, Context& context) {
  int64_t* counts = context.workspace<int64_t>(2);
  context.clear(counts, int64_t(sizeof(Counts)));
  launch(context, "direction_optimized", g.args.vertices, Count<G>{g, level, counts});
  return read_back(reinterpret_cast<const Counts*>(counts), context);
}

}  // namespace

void direction_optimized(const Args& args, Context& context) {
  with_graph(with_in_edges(args, context), [&](const auto& g) {
    using G = std::decay_t<decltype(g)>;
    int64_t edges_to_check = args.edges, before = 0;
    bool pulls = false;
    search_dense("direction_optimized", g, context, [&](uint32_t level, int* found) {
      const Counts frontier = count(g, level - 1, context);
      pulls = pulls ? frontier.vertices >= before || frontier.vertices > args.vertices / beta
                    : frontier.edges > edges_to_check / alpha;
      edges_to_check -= frontier.edges;
      before = frontier.vertices;
      if (pulls) {
        launch(context, "direction_optimized", args.vertices, Pull<G>{g, level, found});
      } else {
        launch(context, "direction_optimized", args.vertices, Push<G>{g, level, found});
      }
    });
  });
}

}  // namespace tp::graph
