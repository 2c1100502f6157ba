// Builds the in-edges of a graph that came without them: it counts them per vertex, computes exclusive prefix sums, and
// scatters each edge to the next free slot of the vertex that it enters. The order of a vertex's in-edges is undefined.
#pragma once
#include "graph/search.h"
#include "scan/scan.h"

namespace tp::graph {

// Calls f(vertex, neighbor) for every edge, one lane per vertex.
template <class Block, class G, class F>
TP_HD void for_each_edge(Block& block, const char* phase, const G& g, F f) {
  const auto out = g.out(block);
  for_each(block, phase, g.args.vertices, [&](int64_t vertex) {
    const int64_t end = out.end(vertex);
    for (int64_t edge = out.begin(vertex); edge < end; ++edge) {
      const int64_t neighbor = out[edge];
      if (is_vertex(neighbor, g.args, edge)) f(vertex, neighbor);
    }
  });
}

template <class G>
struct CountIn {
  G g;
  int64_t* counts;  // counts[v] is the in-degree of vertex v

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto count = block.global("counts", counts, g.args.vertices + 1);
    for_each_edge(block, "count", g, [&](int64_t, int64_t to) { count.template atomic<Sum<int64_t>>(to, 1); });
  }
};

template <class G>
struct StorePointers {
  const int64_t* sums;
  typename G::Row* rows;
  int64_t n;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto from = block.global("sums", sums, n);
    const auto to = block.global("in_row_ptrs", rows, n);
    for_each(block, "store", n, [&](int64_t i) {
      const int64_t sum = from[i];
      to[i] = typename G::Row(sum);
    });
  }
};

// Scatters the edges. On the device, overlapping rows may count more edges than there are; those beyond the end are
// dropped.
template <class G>
struct ScatterIn {
  G g;
  int64_t* next;
  typename G::Id* ids;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto slots = block.global("next", next, g.args.vertices + 1);
    const auto to = block.global("in_col_idx", ids, g.args.edges);
    for_each_edge(block, "scatter", g, [&](int64_t vertex, int64_t neighbor) {
      const int64_t at = slots.template atomic<Sum<int64_t>>(neighbor, 1);
      if (at < g.args.edges) to[at] = typename G::Id(vertex);
    });
  }
};

// Returns args with in-edges.
inline Args with_in_edges(Args args, Context& context) {
  if (args.in.col_idx != nullptr) return args;
  with_graph(args, [&](const auto& g) {
    using G = std::decay_t<decltype(g)>;
    const int64_t n = args.vertices + 1;
    int64_t *counts = context.workspace<int64_t>(n), *sums = context.workspace<int64_t>(n);
    auto* rows = context.workspace<typename G::Row>(n);
    auto* ids = context.workspace<typename G::Id>(args.edges);
    context.clear(counts, n * int64_t(sizeof(int64_t)));
    launch(context, "in_edges", args.vertices, CountIn<G>{g, counts});
    scan::Args scan{};
    scan.in = counts;
    scan.out = sums;
    scan.outer = scan.inner = 1;
    scan.n = n;
    scan.dtype = DType::int64;
    scan.op = OpId::sum;
    scan.exclusive = true;
    const bool cuda = context.device.cuda;
    find(scan::ladder, "scan", scan::choose(scan, context.device), cuda).run(scan, context);
    launch(context, "in_edges", n, StorePointers<G>{sums, rows, n});
    launch(context, "in_edges", args.vertices, ScatterIn<G>{g, sums, ids});
    args.in = {rows, ids};
  });
  return args;
}

}  // namespace tp::graph
