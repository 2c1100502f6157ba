// What the level-by-level searches share on host and device: the arrays as a block sees them, initialization, the loop
// over the levels, and the parents.
//
// A thread claims a vertex by an atomic minimum on its level; the level of an unreached vertex is the greatest number,
// as in the book's figures. Parents are found at the end, when all levels are known: every edge from one level to the
// next lowers the parent of its target to its source, so the smallest id wins.
#pragma once
#include "core/for_each.h"
#include "graph/edges.h"

namespace tp::graph {

using simt::Sharing;

constexpr int threads = simt::for_each_threads;
constexpr uint32_t no_level = uint32_t(unreached);
// The arrays of a search, named for the checks of simt.h. Row and Id are the types of row_ptrs and col_idx.

template <class Row_, class Id_>
struct Graph {
  using Row = Row_;
  using Id = Id_;
  using Parent =
      typename std::make_unsigned<Id>::type;  // the greatest value, the identity of the minimum, means "no parent"
  Args args;

  template <class Block>
  TP_HD auto out(Block& block) const {
    return bind<Row, Id>(block, args, args.out, "row_ptrs", "col_idx");
  }
  template <class Block>
  TP_HD auto in(Block& block) const {
    return bind<Row, Id>(block, args, args.in, "in_row_ptrs", "in_col_idx");
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

using simt::for_each;

template <class Kernel>
void launch(Context& context, const char* rung, int64_t lanes, const Kernel& kernel, int64_t shared_bytes = 0) {
  simt::launch_for_each(context, rung, lanes, kernel, shared_bytes);
}

// Returns a value that a kernel wrote on the device, for which the host waits.
template <class T>
T read_back(const T* value, Context& context) {
#ifdef __CUDACC__
  if (context.device.cuda) {
    T copy;
    const auto stream = cudaStream_t(context.stream);
    cudaError_t status = cudaMemcpyAsync(&copy, value, sizeof(T), cudaMemcpyDeviceToHost, stream);
    if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
    require(status == cudaSuccess, "graph: ", cudaGetErrorString(status));
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

// Labels the sources with level 0. If there is a queue, each source is appended to it once, even if it is given twice.
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

// Finds the parents. For each vertex, 32 lanes take its edges in turn.
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
      if (level == no_level || level >= g.args.max_level) return;  // no vertex was reached from this one
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

// A search without a queue: calls step(level, found) to label one level after another, until a step leaves 0 in
// `found`.
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

// A frontier. A vertex is in it at most once, so it has room for all vertices.
template <class Id>
struct Queue {
  Id* vertices;
  int64_t* size;
};

// A search with queues: calls step(level, from, size, to), which labels a level and queues the vertices that it labels
// in `to`, until a queue is empty. It returns the next level to label.
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
