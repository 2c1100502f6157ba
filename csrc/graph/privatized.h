// One level of a breadth-first search by the kernel of privatized_frontier.cu, for the rungs that go on by it.
#pragma once
#include "graph/search.h"

namespace tp::graph {

// Labels as `level` what the `size` vertices of `from` lead to and was not visited, and queues it in `to`.
template <class G>
void push_privatized(const char* rung, const G& g, Context& context, int64_t level, const Queue<typename G::Id>& from,
                     int64_t size, const Queue<typename G::Id>& to);

}  // namespace tp::graph
