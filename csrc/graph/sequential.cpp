// The sequential search (§15.2; Fig. 15.4 shows its result). Vertices leave a queue in the order in which they were
// reached, so levels come in order. Every other rung is tested against this one, so it is written for clarity only.
#include <algorithm>
#include <vector>

#include "graph/edges.h"

namespace tp::graph {
namespace {

template <class Row, class Id>
void search(const Args& args) {
  const auto out = adjacency<Row, Id>(args.out, args);
  int32_t* levels = args.levels;
  Id* parents = static_cast<Id*>(args.parents);
  std::fill_n(levels, args.vertices, unreached);
  std::fill_n(parents, args.vertices, Id(-1));

  std::vector<Id> queue;
  for (int64_t i = 0; i < args.num_sources; ++i) {
    const int64_t source = args.sources[i];
    if (uint64_t(source) >= uint64_t(args.vertices) || levels[source] == 0) continue;
    levels[source] = 0;
    parents[source] = Id(source);
    queue.push_back(Id(source));
  }
  for (size_t head = 0; head < queue.size(); ++head) {
    const Id vertex = queue[head];
    const int32_t next = levels[vertex] + 1;
    if (next > args.max_level) break;
    const int64_t end = out.end(vertex);
    for (int64_t edge = out.begin(vertex); edge < end; ++edge) {
      const int64_t neighbor = out[edge];
      if (!is_vertex(neighbor, args, edge)) continue;
      if (levels[neighbor] == unreached) {
        levels[neighbor] = next;
        parents[neighbor] = vertex;
        queue.push_back(Id(neighbor));
      } else if (levels[neighbor] == next) {
        parents[neighbor] = std::min(parents[neighbor], vertex);
      }
    }
  }
}

}  // namespace

void sequential(const Args& args, Context&) {
  with_types(args, [&](auto row, auto id) { search<decltype(row), decltype(id)>(args); });
}

}  // namespace tp::graph
