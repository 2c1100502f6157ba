// Breadth-first search with privatized frontiers (§15.6, Figs. 15.14 and 15.15): one thread per vertex of the previous
// frontier. Each block has a queue of its own, so that blocks seldom contend for the size of the queue that they share.
//
// The block's queue is in shared memory, where atomic additions are fast. After all threads have pushed, one thread
// reserves room for the whole block by a single atomic addition on the grid's queue, and neighbouring threads copy the
// block's queue there, so that the writes coalesce. A vertex for which the block's queue has no room goes to the grid's
// queue at once. The thread that labels a vertex first, by an atomic operation on its level, queues it, so each vertex
// is queued once: the minimum with curr_level keeps a smaller level and returns the old value, as the figure's
// compare-and-swap does. There are barriers after the counter is cleared, after all threads have pushed, and after room
// is reserved.
//
// When a block's queue is full, the figure resets its counter by a plain store, which may undo what other threads count
// meanwhile. Here the counter keeps growing, and is limited where it is read.
#include "graph/privatized.h"

namespace tp::graph {
namespace {

template <class G>
struct PrivatizedFrontierKernel {
  using Id = typename G::Id;
  static constexpr int64_t local_capacity = 2048;
  static constexpr int64_t shared_bytes = local_capacity * int64_t(sizeof(Id)) + 2 * int64_t(sizeof(int64_t));
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
    const auto num_curr_frontier_s = block.template shared<int64_t>("num_curr_frontier_s", 1);
    const auto start_idx = block.template shared<int64_t>("curr_frontier_start_idx", 1);
    const auto curr_frontier_s = block.template shared<Id>("curr_frontier_s", int(local_capacity));

    // Clear the counter of the block's queue.
    block.phase("initialize", [&](int t) {
      if (t == 0) num_curr_frontier_s[0] = 0;
    });
    // Push: label the unvisited neighbours, and queue them in the block's queue.
    block.phase("push", [&](int t) {
      const int64_t i = block.index().x * threads + t;
      if (i >= num_prev_frontier) return;
      const Id vertex = prev_frontier[i];
      const int64_t end = out.end(vertex);
      for (int64_t edge = out.begin(vertex); edge < end; ++edge) {
        const int64_t neighbor = out[edge];
        if (!is_vertex(neighbor, g.args, edge)) continue;
        if (level.template atomic<Min<uint32_t>>(neighbor, curr_level) != no_level) continue;
        const int64_t idx_s = num_curr_frontier_s.template atomic<Sum<int64_t>>(0, 1);
        if (idx_s < local_capacity) {
          curr_frontier_s[idx_s] = Id(neighbor);
        } else {
          curr_frontier[num_curr_frontier.template atomic<Sum<int64_t>>(0, 1)] = Id(neighbor);
        }
      }
    });
    // Reserve room in the grid's queue.
    block.phase("allocate", [&](int t) {
      if (t != 0) return;
      const int64_t count = tp::min(int64_t(num_curr_frontier_s[0]), local_capacity);
      start_idx[0] = num_curr_frontier.template atomic<Sum<int64_t>>(0, count);
    });
    // Copy the block's queue to the grid's queue.
    block.phase("commit", [&](int t) {
      const int64_t count = tp::min(int64_t(num_curr_frontier_s[0]), local_capacity), start = start_idx[0];
      for (int64_t i = t; i < count; i += threads) curr_frontier[start + i] = Id(curr_frontier_s[i]);
    });
  }
};

}  // namespace

template <class G>
void push_privatized(const char* rung, const G& g, Context& context, int64_t level, const Queue<typename G::Id>& from,
                     int64_t size, const Queue<typename G::Id>& to) {
  using Kernel = PrivatizedFrontierKernel<G>;
  simt::launch(context, rung, {ceil_div(size, int64_t(threads))}, threads, Kernel::shared_bytes,
               Kernel{g, from, to, size, uint32_t(level)});
}

void privatized_frontier(const Args& args, Context& context) {
  with_graph(args, [&](const auto& g) {
    search_queued("privatized_frontier", g, context,
                  [&](int64_t level, const auto& from, int64_t size, const auto& to) {
                    push_privatized("privatized_frontier", g, context, level, from, size, to);
                    return level + 1;
                  });
  });
}

#define TP_PUSH(Row, Id)                                                                                          \
  template void push_privatized(const char*, const Graph<Row, Id>&, Context&, int64_t, const Queue<Id>&, int64_t, \
                                const Queue<Id>&);
TP_PUSH(int32_t, int32_t)
TP_PUSH(int64_t, int32_t)
TP_PUSH(int64_t, int64_t)
#undef TP_PUSH

}  // namespace tp::graph
