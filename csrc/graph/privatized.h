// A level from a queue, whose vertices a block first gathers in a queue of its own (§15.6, Fig. 15.14).
#pragma once
#include "graph/search.h"

namespace tp::graph {

// The block's queue is in shared memory, its places cost an atomic there; it takes one atomic on the grid's queue and
// goes there side by side. What finds no room in it goes to the grid's queue at once. The figure then sets the block's
// count back with a plain store, which may undo what others count meanwhile; here it runs on, and is cut at the end.
template <class G>
struct Privatized {
  using Id = typename G::Id;
  static constexpr int capacity = 2048;
  static constexpr int64_t shared_bytes = capacity * int64_t(sizeof(Id)) + 2 * int64_t(sizeof(int64_t));
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
    auto count = block.template shared<int64_t>("size_s", 1);
    auto first = block.template shared<int64_t>("first", 1);
    auto current_s = block.template shared<Id>("current frontier_s", capacity);

    block.phase("clear", [&](int t) {
      if (t == 0) count[0] = 0;
    });
    block.phase("push", [&](int t) {
      const int64_t i = block.index().x * threads + t;
      if (i >= size) return;
      const Id vertex = previous[i];
      const int64_t end = out.end(vertex);
      for (int64_t edge = out.begin(vertex); edge < end; ++edge) {
        const int64_t neighbor = out[edge];
        if (!is_vertex(neighbor, g.args, edge)) continue;
        if (levels.template atomic<Min<uint32_t>>(neighbor, level) != no_level) continue;
        const int64_t place = count.template atomic<Sum<int64_t>>(0, 1);
        if (place < capacity) {
          current_s[place] = Id(neighbor);
        } else {
          current[current_size.template atomic<Sum<int64_t>>(0, 1)] = Id(neighbor);
        }
      }
    });
    block.phase("reserve", [&](int t) {
      const int64_t gathered = count[0];
      if (t == 0) first[0] = current_size.template atomic<Sum<int64_t>>(0, tp::min(gathered, int64_t(capacity)));
    });
    block.phase("commit", [&](int t) {
      const int64_t gathered = count[0], place = first[0];
      for (int64_t i = t; i < tp::min(gathered, int64_t(capacity)); i += threads) {
        const Id vertex = current_s[i];
        current[place + i] = vertex;
      }
    });
  }
};

template <class G>
void push_privatized(const char* rung, const G& g, Context& context, int64_t level, const Queue<typename G::Id>& from,
                     int64_t size, const Queue<typename G::Id>& to) {
  const Privatized<G> kernel{g, from, to, size, uint32_t(level)};
  simt::launch(context, rung, {ceil_div(size, int64_t(threads))}, threads, Privatized<G>::shared_bytes, kernel);
}

}  // namespace tp::graph
