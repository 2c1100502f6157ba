// A level by asking every vertex: those of the last level push it along their out-edges (Fig. 15.6), those not reached
// pull it along their in-edges and stop at the first that has it (Fig. 15.8).
#pragma once
#include "graph/search.h"

namespace tp::graph {

// Two threads may label one vertex: both write the same.
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

template <class G>
struct Pull {
  G g;
  uint32_t level;
  int* found;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto in = g.in(block);
    const auto levels = g.levels(block, Sharing::idempotent);  // read as unreached or as this level, it is not the last
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

}  // namespace tp::graph
