// Dijkstra's algorithm (1959): vertices leave a heap in the order of their distances, and each relaxes its edges. A
// vertex whose distance decreases enters the heap again, and its older entries are skipped. Every other rung is tested
// against this one, so it is written for clarity only.
#include <limits>
#include <queue>

#include "graph/sssp/parents.h"

namespace tp::sssp {
namespace {

template <class T, class Row, class Id>
void find_distances(const Args& args) {
  const auto out = graph::adjacency<Row, Id>(args.out, args);
  const T* weights = static_cast<const T*>(args.weights);
  T* distances = static_cast<T*>(args.distances);
  std::fill_n(distances, args.vertices, std::numeric_limits<T>::infinity());

  using Entry = std::pair<T, Id>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> heap;
  for (int64_t i = 0; i < args.num_sources; ++i) {
    distances[args.sources[i]] = T(0);
    heap.push({T(0), Id(args.sources[i])});
  }
  while (!heap.empty()) {
    const auto [distance, u] = heap.top();
    heap.pop();
    if (distance > distances[u]) continue;
    const int64_t end = out.end(u);
    for (int64_t edge = out.begin(u); edge < end; ++edge) {
      const Id v = out.ids[edge];
      const T offer = distance + weights[edge];
      if (!(offer < distances[v])) continue;
      distances[v] = offer;
      heap.push({offer, v});
    }
  }
}

}  // namespace

void sequential(const Args& args, Context&) {
  with_types(args, [&](auto weight, auto row, auto id) {
    find_distances<decltype(weight), decltype(row), decltype(id)>(args);
    find_parents<decltype(weight), decltype(row), decltype(id)>(args);
  });
}

}  // namespace tp::sssp
