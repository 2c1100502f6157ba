// A level as the product of the transposed adjacency matrix and a vector (§15.4). x[u] is u if vertex u is in the
// previous level, and the sum over the in-edges of v is a minimum. So y[v] is the smallest neighbour one level up,
// which becomes the parent of v if v is unreached. The sums are computed by the balanced segmented reduction, as those
// of a sparse product are, and like a sparse product every level visits all edges.
#include "graph/in_edges.h"
#include "segmented/segmented.h"

namespace tp::graph {
namespace {

// The terms of all sums: the element of x for every entry.
template <class G>
struct Gather {
  using Id = typename G::Id;
  G g;
  Id* factors;
  uint32_t level;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto in = g.in(block);
    const auto levels = g.levels(block);
    const auto x = block.global("factors", factors, g.args.edges);
    for_each(block, "gather", g.args.edges, [&](int64_t edge) {
      const int64_t neighbor = in[edge];
      const bool exists = is_vertex(neighbor, g.args, edge);
      const uint32_t theirs = exists ? uint32_t(levels[neighbor]) : no_level;
      x[edge] = theirs == level - 1 ? Id(neighbor) : Min<Id>::identity();
    });
  }
};

template <class G>
struct Update {
  using Id = typename G::Id;
  G g;
  const Id* y;
  uint32_t level;
  int* found;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto levels = g.levels(block);
    const auto parents = g.parents(block);
    const auto product = block.global("y", y, g.args.vertices);
    const auto any = block.global("found", found, 1, Sharing::idempotent);
    for_each(block, "update", g.args.vertices, [&](int64_t vertex) {
      const Id neighbor = product[vertex];
      const uint32_t mine = levels[vertex];
      if (mine != no_level || neighbor == Min<Id>::identity()) return;
      levels[vertex] = level;
      parents[vertex] = typename G::Parent(neighbor);
      any[0] = 1;
    });
  }
};

template <class G>
void search(const G& g, Context& context) {
  using Id = typename G::Id;
  Id *factors = context.workspace<Id>(g.args.edges), *y = context.workspace<Id>(g.args.vertices);
  segmented::Args sums{};
  sums.step = segmented::Step::reduce;
  sums.in = factors;
  sums.out = y;
  sums.offsets = g.args.in.row_ptrs;
  sums.long_offsets = g.args.long_rows;
  sums.n = g.args.edges;
  sums.width = 1;
  sums.segments = g.args.vertices;
  sums.dtype = dtype_of<Id>::value;
  sums.op = OpId::min;
  const char* choice = segment_reduce::choose(sums, context.device);
  const auto& reduce = find(segment_reduce::ladder, "segment_reduce", choice, context.device.cuda);
  search_dense("linear_algebra", g, context, [&](uint32_t level, int* found) {
    launch(context, "linear_algebra", g.args.edges, Gather<G>{g, factors, level});
    reduce.run(sums, context);
    launch(context, "linear_algebra", g.args.vertices, Update<G>{g, y, level, found});
  });
}

}  // namespace

void linear_algebra(const Args& args, Context& context) {
  with_graph(with_in_edges(args, context), [&](const auto& g) { search(g, context); });
}

}  // namespace tp::graph
