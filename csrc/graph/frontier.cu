// A thread a vertex of the last level, which stand in a queue, so that nobody else is asked (§15.5, Fig. 15.12). A
// vertex must be queued once: who labels it first, by an atomic on its level, does so, at a place that an atomic on the
// queue's size gives.
#include "graph/search.h"

namespace tp::graph {
namespace {

template <class G>
struct Frontier {
  using Id = typename G::Id;
  G g;
  Queue<Id> from, to;
  int64_t size;
  uint32_t level;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto out = g.out(block);
    const auto levels = g.levels(block);
    const auto previous = block.global("previous frontier", from.vertices, g.args.vertices);
    const auto current = block.global("current frontier", to.vertices, g.args.vertices);
    const auto current_size = block.global("size", to.size, 1);
    for_each(block, "push", size, [&](int64_t i) {
      const Id vertex = previous[i];
      const int64_t end = out.end(vertex);
      for (int64_t edge = out.begin(vertex); edge < end; ++edge) {
        const int64_t neighbor = out[edge];
        if (!is_vertex(neighbor, g.args, edge)) continue;
        if (levels.template atomic<Min<uint32_t>>(neighbor, level) != no_level) continue;
        current[current_size.template atomic<Sum<int64_t>>(0, 1)] = Id(neighbor);
      }
    });
  }
};

}  // namespace

void frontier(const Args& args, Context& context) {
  with_graph(args, [&](const auto& g) {
    using G = std::decay_t<decltype(g)>;
    search_queued("frontier", g, context, [&](int64_t level, const auto& from, int64_t size, const auto& to) {
      launch(context, "frontier", size, Frontier<G>{g, from, to, size, uint32_t(level)});
      return level + 1;
    });
  });
}

}  // namespace tp::graph
