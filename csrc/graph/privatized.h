// One level of a breadth-first search by the kernel of privatized_frontier.cu, which other rungs use as well.
#pragma once
#include "graph/search.h"

namespace tp::graph {

// Labels the unvisited neighbours of the `size` vertices in `from` with `level`, and queues them in `to`.
template <class G>
void push_privatized(const char* rung, const G& g, Context& context, int64_t level, const Queue<typename G::Id>& from,
                     int64_t size, const Queue<typename G::Id>& to);

}  // namespace tp::graph
