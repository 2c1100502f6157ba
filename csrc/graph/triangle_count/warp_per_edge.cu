// 32 lanes per edge (after Hu, Liu and Huang, TriCore: parallel triangle counting on GPUs, 2018) stride through the
// shorter of the two lists and look up each entry in the longer one by binary search.
//
// The lists are built without atomics, so they keep the order of the rows: every edge that leads to a later vertex is
// flagged, and a prefix sum of the flags gives its position. The constructors of graphs sort rows, so the lists are
// sorted, too; a list that is not sorted is sorted by one lane. Equal entries are adjacent, and all but the first are
// skipped.
#include "graph/search.h"
#include "graph/triangle_count/triangle_count.h"
#include "scan/scan.h"

namespace tp::triangle_count {
namespace {

using graph::launch;
using simt::for_each;

constexpr int lanes = 32;
constexpr int64_t most_lanes = int64_t(1) << 20;
constexpr const char* rung = "warp_per_edge";

template <class Row_, class Id_>
struct Lists {
  using Row = Row_;
  using Id = Id_;
  Args args;
  int64_t *flags, *positions;  // [edges + 1]; the list of a vertex begins at the position of its first edge
  Id *sources, *targets;       // [edges], of which only the edges in lists are used

  template <class Block>
  TP_HD auto edges(Block& block) const {
    return graph::bind<Row, Id>(block, args, args.out, "row_ptrs", "col_idx");
  }
  template <class Block, class T>
  TP_HD auto of_edges(Block& block, const char* name, T* data, int64_t more = 0) const {
    return block.global(name, data, args.edges + more);
  }
};

template <class L>
struct Flag {
  L l;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto edges = l.edges(block);
    const auto flags = l.of_edges(block, "flags", l.flags, 1);
    for_each(block, "flag", l.args.vertices * lanes, [&](int64_t i) {
      const int64_t vertex = i / lanes, end = edges.end(vertex);
      for (int64_t edge = edges.begin(vertex) + i % lanes; edge < end; edge += lanes) {
        const int64_t to = edges[edge];
        if (graph::is_vertex(to, l.args, edge) && comes_before(vertex, to, edges)) flags[edge] = 1;
      }
    });
  }
};

// Valid graphs have no overlapping rows. If rows overlap, they share flags and positions, but every entry is still a
// vertex.
template <class L>
struct Fill {
  L l;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using Id = typename L::Id;
    const auto edges = l.edges(block);
    const auto flags = l.of_edges(block, "flags", l.flags, 1);
    const auto positions = l.of_edges(block, "positions", l.positions, 1);
    const auto sources = l.of_edges(block, "sources", l.sources);
    const auto targets = l.of_edges(block, "targets", l.targets);
    for_each(block, "fill", l.args.vertices * lanes, [&](int64_t i) {
      const int64_t vertex = i / lanes, end = edges.end(vertex);
      for (int64_t edge = edges.begin(vertex) + i % lanes; edge < end; edge += lanes) {
        const int64_t flag = flags[edge], position = positions[edge];
        if (flag == 0) continue;
        sources[position] = Id(vertex);
        targets[position] = Id(edges[edge]);
      }
    });
  }
};

// Insertion sort, which only reads a list that is already sorted.
template <class L>
struct Sort {
  L l;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using Id = typename L::Id;
    const auto edges = l.edges(block);
    const auto positions = l.of_edges(block, "positions", l.positions, 1);
    const auto targets = l.of_edges(block, "targets", l.targets);
    for_each(block, "sort", l.args.vertices, [&](int64_t vertex) {
      const int64_t begin = positions[edges.begin(vertex)], end = positions[edges.end(vertex)];
      for (int64_t i = begin + 1; i < end; ++i) {
        const Id moved = targets[i];
        int64_t j = i;
        for (; j > begin; --j) {
          const Id before = targets[j - 1];
          if (before <= moved) break;
          targets[j] = before;
        }
        if (j < i) targets[j] = moved;
      }
    });
  }
};

template <class L>
struct Count {
  using Id = typename L::Id;
  L l;

  struct List {
    int64_t begin, end;
    TP_HD int64_t size() const { return end - begin; }
  };

  template <class Targets>
  TP_HD static bool repeats(const Targets& targets, int64_t i, const List& list) {
    if (i == list.begin) return false;
    const Id mine = targets[i], before = targets[i - 1];
    return mine == before;
  }
  template <class Targets>
  TP_HD static bool contains(const Targets& targets, List list, Id wanted) {
    while (list.begin < list.end) {
      const int64_t middle = list.begin + list.size() / 2;
      const Id found = targets[middle];
      if (found == wanted) return true;
      (found < wanted ? list.begin : list.end) = found < wanted ? middle + 1 : middle;
    }
    return false;
  }

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto edges = l.edges(block);
    const auto positions = l.of_edges(block, "positions", l.positions, 1);
    const auto sources = l.of_edges(block, "sources", l.sources);
    const auto targets = l.of_edges(block, "targets", l.targets);
    const auto total = block.global("count", l.args.count, 1);
    auto sum = block.template shared<int64_t>("sum", 1);
    block.phase("clear", [&](int t) {
      if (t == 0) sum[0] = 0;
    });
    block.phase("count", [&](int t) {
      const auto list_of = [&](int64_t vertex) -> List {
        return {positions[edges.begin(vertex)], positions[edges.end(vertex)]};
      };
      const int64_t kept = positions[l.args.edges], lane = block.index().x * block.threads() + t;
      const int64_t warps = block.grid().x * block.threads() / lanes;
      int64_t mine = 0;
      for (int64_t edge = lane / lanes; edge < kept; edge += warps) {
        const Id from = sources[edge], to = targets[edge];
        const List ours = list_of(from), theirs = list_of(to);
        if (repeats(targets, edge, ours)) continue;
        const bool swapped = theirs.size() < ours.size();
        const List shorter = swapped ? theirs : ours, longer = swapped ? ours : theirs;
        for (int64_t i = shorter.begin + lane % lanes; i < shorter.end; i += lanes) {
          const Id wanted = targets[i];
          if (!repeats(targets, i, shorter)) mine += contains(targets, longer, wanted);
        }
      }
      if (mine != 0) sum.template atomic<Sum<int64_t>>(0, mine);
    });
    block.phase("add", [&](int t) {
      const int64_t mine = sum[0];
      if (t == 0 && mine != 0) total.template atomic<Sum<int64_t>>(0, mine);
    });
  }
};

template <class L>
void count(L l, Context& context) {
  const int64_t n = l.args.edges + 1, bytes = n * int64_t(sizeof(int64_t));
  l.flags = context.workspace<int64_t>(n);
  l.positions = context.workspace<int64_t>(n);
  l.sources = context.workspace<typename L::Id>(l.args.edges);
  l.targets = context.workspace<typename L::Id>(l.args.edges);
  context.clear(l.flags, bytes);
  context.clear(l.args.count, int64_t(sizeof(int64_t)));
  launch(context, rung, l.args.vertices * lanes, Flag<L>{l});
  scan::scan_counts(context, l.flags, l.positions, 1, n);
  launch(context, rung, l.args.vertices * lanes, Fill<L>{l});
  launch(context, rung, l.args.vertices, Sort<L>{l});
  launch(context, rung, tp::min(l.args.edges * lanes, most_lanes), Count<L>{l}, int64_t(sizeof(int64_t)));
}

}  // namespace

void warp_per_edge(const Args& args, Context& context) {
  graph::with_types(args, [&](auto row, auto id) {
    count(Lists<decltype(row), decltype(id)>{args, nullptr, nullptr, nullptr, nullptr}, context);
  });
}

}  // namespace tp::triangle_count
