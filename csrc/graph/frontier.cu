// Breadth-first search with frontiers (§15.5, Fig. 15.12): one thread per vertex of the previous frontier, so that no
// other vertex is looked at.
//
// A vertex must be queued once. The thread that labels it first, by an atomic operation on its level, queues it, at the
// index that an atomic addition to the size of the current frontier returns. The figure uses compare-and-swap; here the
// minimum with curr_level does the same, since it keeps a smaller level and returns the old value. The end of a launch
// is the barrier between levels. The figure has one thread per vertex; here a block may take several rounds.
#include "graph/search.h"

namespace tp::graph {
namespace {

template <class G>
struct FrontierKernel {
  using Id = typename G::Id;
  G g;
  Queue<Id> prev, curr;
  int64_t num_prev_frontier;
  uint32_t curr_level;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto out = g.out(block);
    const auto level = g.levels(block);
    const auto prev_frontier = block.global("prev_frontier", prev.vertices, g.args.vertices);
    const auto curr_frontier = block.global("curr_frontier", curr.vertices, g.args.vertices);
    const auto num_curr_frontier = block.global("num_curr_frontier", curr.size, 1);
    for (int64_t first = block.index().x * threads; first < num_prev_frontier; first += block.grid().x * threads) {
      block.phase("push", [&](int t) {
        if (first + t >= num_prev_frontier) return;
        const Id vertex = prev_frontier[first + t];
        const int64_t end = out.end(vertex);
        for (int64_t edge = out.begin(vertex); edge < end; ++edge) {
          const int64_t neighbor = out[edge];
          if (!is_vertex(neighbor, g.args, edge)) continue;
          if (level.template atomic<Min<uint32_t>>(neighbor, curr_level) != no_level) continue;
          curr_frontier[num_curr_frontier.template atomic<Sum<int64_t>>(0, 1)] = Id(neighbor);
        }
      });
    }
  }
};

}  // namespace

void frontier(const Args& args, Context& context) {
  with_graph(args, [&](const auto& g) {
    using G = std::decay_t<decltype(g)>;
    search_queued("frontier", g, context, [&](int64_t level, const auto& from, int64_t size, const auto& to) {
      launch(context, "frontier", size, FrontierKernel<G>{g, from, to, size, uint32_t(level)});
      return level + 1;
    });
  });
}

}  // namespace tp::graph
