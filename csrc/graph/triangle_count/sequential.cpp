// Every vertex keeps a sorted list of its later neighbours. For every edge, merging the lists of its two ends finds the
// neighbours that they share. Every other rung is tested against this one, so it is written for clarity only.
#include <algorithm>
#include <vector>

#include "graph/edges.h"
#include "graph/triangle_count/triangle_count.h"

namespace tp::triangle_count {
namespace {

template <class Id>
int64_t count_common(const std::vector<Id>& a, const std::vector<Id>& b) {
  int64_t count = 0;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    if (*i < *j) {
      ++i;
    } else if (*j < *i) {
      ++j;
    } else {
      ++count, ++i, ++j;
    }
  }
  return count;
}

template <class Row, class Id>
int64_t count(const Args& args) {
  const auto edges = graph::adjacency<Row, Id>(args.out, args);
  std::vector<std::vector<Id>> later(static_cast<size_t>(args.vertices));
  for (int64_t u = 0; u < args.vertices; ++u) {
    auto& list = later[size_t(u)];
    const int64_t end = edges.end(u);
    for (int64_t edge = edges.begin(u); edge < end; ++edge) {
      const Id v = edges.ids[edge];
      if (graph::is_vertex(v, args, edge) && comes_before(u, v, edges)) list.push_back(v);
    }
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  int64_t count = 0;
  for (const auto& list : later) {
    for (const Id v : list) count += count_common(list, later[size_t(v)]);
  }
  return count;
}

}  // namespace

void sequential(const Args& args, Context&) {
  graph::with_types(args, [&](auto row, auto id) { *args.count = count<decltype(row), decltype(id)>(args); });
}

}  // namespace tp::triangle_count
