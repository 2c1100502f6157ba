// Small levels one after another in one launch of one block, whose barrier separates them (§15.7, Fig. 15.16, exercise
// 15.3). A level that does not fit in the block's queue ends the launch: the vertices for which there was no room are
// already in the grid's queue, and the others are copied there. Levels are then found as in privatized_frontier, until
// one is small again.
#include "graph/privatized.h"

namespace tp::graph {
namespace {

template <class G>
struct SmallLevels {
  using Id = typename G::Id;
  static constexpr int capacity = 1024;
  static constexpr int64_t shared_bytes = 2 * capacity * int64_t(sizeof(Id)) + int64_t(sizeof(int64_t));
  G g;
  Queue<Id> from, to;  // `to` gets the last level that is labelled, with its size
  int64_t size;        // of `from`, at most `capacity`
  int64_t first_level;
  int64_t* end_level;  // the first level that is not labelled

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto out = g.out(block);
    const auto levels = g.levels(block);
    const auto previous = block.global("previous frontier", from.vertices, g.args.vertices);
    const auto current = block.global("current frontier", to.vertices, g.args.vertices);
    const auto result = block.global("size", to.size, 1);
    const auto next_level = block.global("level", end_level, 1);
    auto count = block.template shared<int64_t>("size_s", 1);
    auto frontiers = block.template shared<Id>("frontiers_s", 2 * capacity);

    int64_t level = first_level, n = size;
    int here = 0;
    block.phase("load", [&](int t) {
      for (int64_t i = t; i < n; i += threads) {
        const Id vertex = previous[i];
        frontiers[i] = vertex;
      }
    });
    for (; n > 0 && n <= capacity && level <= g.args.max_level; ++level, here = 1 - here) {
      block.phase("clear", [&](int t) {
        if (t == 0) count[0] = 0;
      });
      block.phase("push", [&](int t) {
        for (int64_t i = t; i < n; i += threads) {
          const Id vertex = frontiers[here * capacity + i];
          const int64_t end = out.end(vertex);
          for (int64_t edge = out.begin(vertex); edge < end; ++edge) {
            const int64_t neighbor = out[edge];
            if (!is_vertex(neighbor, g.args, edge)) continue;
            if (levels.template atomic<Min<uint32_t>>(neighbor, uint32_t(level)) != no_level) continue;
            const int64_t slot = count.template atomic<Sum<int64_t>>(0, 1);
            if (slot < capacity) {
              frontiers[(1 - here) * capacity + slot] = Id(neighbor);
            } else {
              current[slot] = Id(neighbor);
            }
          }
        }
      });
      n = block.uniform("size", [&] {
        const int64_t reached = count[0];
        return reached;
      });
    }
    block.phase("store", [&](int t) {
      for (int64_t i = t; i < tp::min(n, int64_t(capacity)); i += threads) {
        const Id vertex = frontiers[here * capacity + i];
        current[i] = vertex;
      }
      if (t != 0) return;
      result[0] = n;
      next_level[0] = level;
    });
  }
};

}  // namespace

void single_block(const Args& args, Context& context) {
  with_graph(args, [&](const auto& g) {
    using Small = SmallLevels<std::decay_t<decltype(g)>>;
    int64_t* end_level = context.workspace<int64_t>(1);
    search_queued("single_block", g, context, [&](int64_t level, const auto& from, int64_t size, const auto& to) {
      if (size > Small::capacity) {
        push_privatized("single_block", g, context, level, from, size, to);
        return level + 1;
      }
      const Small kernel{g, from, to, size, level, end_level};
      simt::launch(context, "single_block", {1}, threads, Small::shared_bytes, kernel);
      return read_back(end_level, context);
    });
  });
}

}  // namespace tp::graph
