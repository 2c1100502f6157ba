// The parents on the host, once all distances are known.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "graph/edges.h"
#include "graph/sssp/sssp.h"

namespace tp::sssp {

// Calls f(T{}, Row{}, Id{}) with the types of the weights, of the row pointers and of the column indices.
template <class F>
void with_types(const Args& args, F f) {
  dispatch(Weights{}, args.dtype, args.op, [&](auto type) {
    graph::with_types(args, [&](auto row, auto id) { f(typename decltype(type)::type(), row, id); });
  });
}

template <class T, class Row, class Id>
void find_parents(const Args& args) {
  const auto out = graph::adjacency<Row, Id>(args.out, args);
  const T *const weights = static_cast<const T*>(args.weights), *const distances = static_cast<T*>(args.distances);
  Id* const parents = static_cast<Id*>(args.parents);
  // Calls f(target) for every tight edge that leaves u.
  const auto for_each_tight = [&](int64_t u, auto f) {
    const int64_t end = out.end(u);
    for (int64_t edge = out.begin(u); edge < end; ++edge) {
      const Id v = out.ids[edge];
      const bool reached = distances[v] < std::numeric_limits<T>::infinity();
      if (reached && v != u && distances[v] == distances[u] + weights[edge]) f(v);
    }
  };
  // The number of tight edges from the nearest source to each vertex, by breadth-first search.
  std::vector<int64_t> steps(size_t(args.vertices), args.vertices);
  std::vector<Id> queue;
  std::fill_n(parents, args.vertices, Id(-1));
  for (int64_t i = 0; i < args.num_sources; ++i) {
    const Id source = Id(args.sources[i]);
    if (parents[source] == source) continue;
    parents[source] = source;
    steps[size_t(source)] = 0;
    queue.push_back(source);
  }
  for (size_t head = 0; head < queue.size(); ++head) {
    const Id u = queue[head];
    for_each_tight(u, [&](Id v) {
      if (steps[size_t(v)] < args.vertices) return;
      steps[size_t(v)] = steps[size_t(u)] + 1;
      queue.push_back(v);
    });
  }
  for (int64_t u = 0; u < args.vertices; ++u) {
    for_each_tight(u, [&](Id v) {
      const bool leads = distances[u] < distances[v] || steps[size_t(u)] < steps[size_t(v)];
      if (leads && parents[v] < 0) parents[v] = Id(u);
    });
  }
}

}  // namespace tp::sssp
