// Shared by the rungs written in the model of simt.h: the arrays as a block sees them, and the parents once all
// distances are known, by an atomic minimum along every tight edge. If there are flat edges, a breadth-first search
// over the tight edges, one launch per level, finds which of them lead away from the sources.
#pragma once
#include "graph/search.h"
#include "graph/sssp/key.h"

namespace tp::sssp {

using graph::launch;
using graph::read_back;
using simt::for_each;
using simt::Sharing;

constexpr int lanes = 32;  // per vertex
constexpr uint32_t no_step = uint32_t(-1);

template <class T_, class Row_, class Id_>
struct Paths {
  using T = T_;
  using Row = Row_;
  using Id = Id_;
  using Parent = typename std::make_unsigned<Id>::type;  // the greatest value means "no parent"
  Args args;

  template <class Block>
  TP_HD auto out(Block& block) const {
    return graph::bind<Row, Id>(block, args, args.out, "row_ptrs", "col_idx");
  }
  template <class Block>
  TP_HD auto weights(Block& block) const {
    return block.global("weights", static_cast<const T*>(args.weights), args.edges);
  }
  template <class Block>
  TP_HD auto keys(Block& block) const {
    return block.global("distances", static_cast<Key<T>*>(args.distances), args.vertices);
  }
  template <class Block>
  TP_HD auto parents(Block& block) const {
    return block.global("parents", static_cast<Parent*>(args.parents), args.vertices);
  }
};

// Calls f(u, v, flat) for every tight edge from u to v; 32 lanes share the edges of a vertex u.
template <class Block, class P, class F>
TP_HD void for_each_tight(Block& block, const char* phase, const P& p, F f) {
  using T = typename P::T;
  const auto out = p.out(block);
  const auto weights = p.weights(block);
  const auto keys = p.keys(block);
  for_each(block, phase, p.args.vertices * lanes, [&](int64_t i) {
    const int64_t vertex = i / lanes;
    const Key<T> mine = keys[vertex];
    if (mine == unreached<T>) return;
    const int64_t end = out.end(vertex);
    for (int64_t edge = out.begin(vertex) + i % lanes; edge < end; edge += lanes) {
      const int64_t to = out[edge];
      const T weight = weights[edge];
      const Key<T> theirs = keys[to];
      if (to != vertex && theirs != unreached<T> && key_of(T(distance_of<T>(mine) + weight)) == theirs)
        f(vertex, to, mine == theirs);
    }
  });
}

template <class P>
struct Parents {
  P p;
  int* any_flat;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto parents = p.parents(block);
    const auto found = block.global("any_flat", any_flat, 1, Sharing::idempotent);
    for_each_tight(block, "parents", p, [&](int64_t u, int64_t v, bool flat) {
      if (flat) {
        found[0] = 1;
      } else {
        parents.template atomic<Min<typename P::Parent>>(v, typename P::Parent(u));
      }
    });
  }
};

// Initialises the search over tight edges: the number of steps to each vertex is 0 at the sources.
template <class P>
struct StartSteps {
  P p;
  uint32_t* steps;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto parents = p.parents(block);
    const auto to = block.global("steps", steps, p.args.vertices);
    for_each(block, "start", p.args.vertices, [&](int64_t vertex) {
      const typename P::Parent parent = parents[vertex];
      to[vertex] = int64_t(parent) == vertex ? 0 : no_step;
    });
  }
};

template <class P>
struct Step {
  P p;
  uint32_t *steps, step;
  int* any;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto at = block.global("steps", steps, p.args.vertices, Sharing::idempotent);
    const auto found = block.global("any", any, 1, Sharing::idempotent);
    for_each_tight(block, "step", p, [&](int64_t u, int64_t v, bool) {
      if (uint32_t(at[u]) != step - 1 || uint32_t(at[v]) != no_step) return;
      at[v] = step;
      found[0] = 1;
    });
  }
};

template <class P>
struct FlatParents {
  P p;
  const uint32_t* steps;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto parents = p.parents(block);
    const auto at = block.global("steps", steps, p.args.vertices);
    for_each_tight(block, "parents", p, [&](int64_t u, int64_t v, bool flat) {
      if (flat && uint32_t(at[u]) < uint32_t(at[v]))
        parents.template atomic<Min<typename P::Parent>>(v, typename P::Parent(u));
    });
  }
};

// Initialises the parents: sources are their own, all others have none yet.
template <class P>
void find_parents(const char* rung, const P& p, Context& context) {
  const int64_t vertices = p.args.vertices, int_bytes = int64_t(sizeof(int));
  int* any = context.workspace<int>(1);
  context.clear(any, int_bytes);
  launch(context, rung, vertices * lanes, Parents<P>{p, any});
  if (read_back(any, context) == 0) return;
  auto* steps = context.workspace<uint32_t>(vertices);
  launch(context, rung, vertices, StartSteps<P>{p, steps});
  for (uint32_t step = 1; read_back(any, context) != 0; ++step) {
    context.clear(any, int_bytes);
    launch(context, rung, vertices * lanes, Step<P>{p, steps, step, any});
  }
  launch(context, rung, vertices * lanes, FlatParents<P>{p, steps});
}

}  // namespace tp::sssp
