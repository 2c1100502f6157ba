// What the searches that go level by level share, host and device: the arrays as a block sees them, the start, the loop
// over the levels, and the parents.
//
// A level is the number that a thread finds and sets in one atomic step, the smallest that ever arrives; not reached is
// the greatest of all numbers, as in the book's figures. Parents come last, when all levels stand: every edge that
// leads one level down offers its source, and the smallest stays.
#pragma once
#include "core/simt.h"
#include "graph/edges.h"

namespace tp::graph {

using simt::Sharing;

constexpr int threads = 256;
constexpr uint32_t no_level = uint32_t(unreached);

template <class Row_, class Id_>
struct Graph {
  using Row = Row_;
  using Id = Id_;
  using Parent = typename std::make_unsigned<Id>::type;  // none is the greatest
  Args args;

  template <class Block>
  TP_HD auto bind(Block& block, const Edges& edges, const char* rows_name, const char* ids_name) const {
    const auto rows = block.global(rows_name, static_cast<const Row*>(edges.row_ptrs), args.vertices + 1);
    const auto ids = block.global(ids_name, static_cast<const Id*>(edges.col_idx), args.edges);
    return Adjacency<std::decay_t<decltype(rows)>, std::decay_t<decltype(ids)>>{rows, ids, args.edges};
  }
  template <class Block>
  TP_HD auto out(Block& block) const {
    return bind(block, args.out, "row_ptrs", "col_idx");
  }
  template <class Block>
  TP_HD auto in(Block& block) const {
    return bind(block, args.in, "in_row_ptrs", "in_col_idx");
  }
  template <class Block>
  TP_HD auto levels(Block& block, Sharing sharing = Sharing::exclusive) const {
    return block.global("levels", reinterpret_cast<uint32_t*>(args.levels), args.vertices, sharing);
  }
  template <class Block>
  TP_HD auto parents(Block& block) const {
    return block.global("parents", static_cast<Parent*>(args.parents), args.vertices);
  }
};

// f(i) for 0 <= i < n, a lane each.
template <class Block, class F>
TP_HD void for_each(Block& block, const char* phase, int64_t n, F f) {
  for (int64_t first = block.index().x * block.threads(); first < n; first += block.grid().x * block.threads()) {
    block.phase(phase, [&](int t) {
      if (first + t < n) f(first + t);
    });
  }
}

template <class Kernel>
void launch(Context& context, const char* rung, int64_t lanes, const Kernel& kernel, int64_t shared_bytes = 0) {
  const int64_t blocks = tp::min(ceil_div(lanes, int64_t(threads)), int64_t(2147483647));
  simt::launch(context, rung, {blocks}, threads, shared_bytes, kernel);
}

// A value that a kernel left on the device: the host waits for it.
template <class T>
T read_back(const T* value, Context& context) {
#ifdef __CUDACC__
  if (context.device.cuda) {
    T copy;
    const auto stream = cudaStream_t(context.stream);
    cudaError_t status = cudaMemcpyAsync(&copy, value, sizeof(T), cudaMemcpyDeviceToHost, stream);
    if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
    require(status == cudaSuccess, "bfs: ", cudaGetErrorString(status));
    return copy;
  }
#endif
  (void)context;
  return *value;
}

// ---- kernels

template <class G>
struct Unreach {
  G g;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto levels = g.levels(block);
    const auto parents = g.parents(block);
    for_each(block, "unreach", g.args.vertices, [&](int64_t vertex) {
      levels[vertex] = no_level;
      parents[vertex] = typename G::Parent(-1);
    });
  }
};

// The sources, each once, in a queue if there is one.
template <class G>
struct Start {
  G g;
  typename G::Id* queue;
  int64_t* size;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const Args& a = g.args;
    const auto sources = block.global("sources", a.sources, a.num_sources);
    const auto levels = g.levels(block);
    const auto parents = g.parents(block);
    const auto frontier = block.global("frontier", queue, queue != nullptr ? a.vertices : 0);
    const auto count = block.global("size", size, size != nullptr ? 1 : 0);
    for_each(block, "start", a.num_sources, [&](int64_t i) {
      const int64_t source = sources[i];
      if (uint64_t(source) >= uint64_t(a.vertices)) return;
      if (levels.template atomic<Min<uint32_t>>(source, 0) == 0) return;
      parents[source] = typename G::Parent(source);
      if (queue != nullptr) frontier[count.template atomic<Sum<int64_t>>(0, 1)] = typename G::Id(source);
    });
  }
};

// A vertex has the `lanes` of a warp, which take its edges in turn.
template <class G>
struct Parents {
  static constexpr int lanes = 32;
  G g;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using Parent = typename G::Parent;
    const auto out = g.out(block);
    const auto levels = g.levels(block);
    const auto parents = g.parents(block);
    for_each(block, "parents", g.args.vertices * lanes, [&](int64_t i) {
      const int64_t vertex = i / lanes;
      const uint32_t level = levels[vertex];
      if (level == no_level || level >= g.args.max_level) return;  // nobody is reached from here
      const int64_t end = out.end(vertex);
      for (int64_t edge = out.begin(vertex) + i % lanes; edge < end; edge += lanes) {
        const int64_t neighbor = out[edge];
        if (!is_vertex(neighbor, g.args, edge)) continue;
        const uint32_t theirs = levels[neighbor];
        if (theirs == level + 1) parents.template atomic<Min<Parent>>(neighbor, Parent(vertex));
      }
    });
  }
};

// ---- the loop

// Calls f(Graph<Row, Id>{args}).
template <class F>
void with_graph(const Args& args, F f) {
  with_types(args, [&](auto row, auto id) { f(Graph<decltype(row), decltype(id)>{args}); });
}

template <class G>
void start(const char* rung, const G& g, Context& context, typename G::Id* queue = nullptr, int64_t* size = nullptr) {
  launch(context, rung, g.args.vertices, Unreach<G>{g});
  launch(context, rung, g.args.num_sources, Start<G>{g, queue, size});
}

// Has `step(level, found)` label one level after another, until one leaves 0 in `found`.
template <class G, class Step>
void search_dense(const char* rung, const G& g, Context& context, Step step) {
  start(rung, g, context);
  int* found = context.workspace<int>(1);
  for (int64_t level = 1; level <= g.args.max_level; ++level) {
    context.clear(found, int64_t(sizeof(int)));
    step(uint32_t(level), found);
    if (read_back(found, context) == 0) break;
  }
  launch(context, rung, g.args.vertices * Parents<G>::lanes, Parents<G>{g});
}

// A frontier: each vertex is in it once, so there is room for all of them.
template <class Id>
struct Queue {
  Id* vertices;
  int64_t* size;
};

// Has `step(level, from, size, to)` label one level after another and queue what it labels, until that is nothing.
template <class G, class Step>
void search_queued(const char* rung, const G& g, Context& context, Step step) {
  using Id = typename G::Id;
  const int64_t bytes = int64_t(sizeof(int64_t));
  Queue<Id> from{context.workspace<Id>(g.args.vertices), context.workspace<int64_t>(1)};
  Queue<Id> to{context.workspace<Id>(g.args.vertices), context.workspace<int64_t>(1)};
  context.clear(from.size, bytes);
  start(rung, g, context, from.vertices, from.size);
  int64_t level = 1;
  while (const int64_t size = read_back(from.size, context)) {
    if (level > g.args.max_level) break;
    context.clear(to.size, bytes);
    level = step(level, from, size, to);
    std::swap(from, to);
  }
  launch(context, rung, g.args.vertices * Parents<G>::lanes, Parents<G>{g});
}

}  // namespace tp::graph
