// Shared by the rungs written in the model of simt.h: the arrays as a block sees them, and the parents once all
// distances are known, by an atomic minimum along every tight edge. If there are flat edges, a breadth-first search
// over the tight edges, one launch per level, finds which of them lead away from the sources.
#pragma once
#include "graph/sssp/key.h"
#include "graph/sssp/walk.h"

namespace tp::sssp {

using graph::launch;
using graph::read_back;
using simt::for_each;
using simt::Sharing;

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

// A walk that calls Found(p, block)(u, v, flat) for every tight edge from u to v.
template <class P, class Found>
struct Tight {
  using Id = typename P::Id;
  P p;
  AllVertices items;
  Found found;

  template <class Block>
  TP_HD auto visit(Block& block) const {
    using T = typename P::T;
    const auto out = p.out(block);
    const auto weights = p.weights(block);
    const auto keys = p.keys(block);
    const auto f = found.bind(p, block);
    return [=](int64_t, int64_t vertex, int64_t edge) {
      const Key<T> mine = keys[vertex];
      const int64_t to = out[edge];
      const T weight = weights[edge];
      const Key<T> theirs = keys[to];
      if (mine == unreached<T> || to == vertex || theirs == unreached<T>) return;
      if (key_of(T(distance_of<T>(mine) + weight)) == theirs) f(vertex, to, mine == theirs);
    };
  }
};

struct SetParents {
  int* any_flat;

  template <class P, class Block>
  TP_HD auto bind(const P& p, Block& block) const {
    const auto parents = p.parents(block);
    const auto found = block.global("any_flat", any_flat, 1, Sharing::idempotent);
    return [=](int64_t u, int64_t v, bool flat) {
      if (flat) {
        found[0] = 1;
      } else {
        parents.template atomic<Min<typename P::Parent>>(v, typename P::Parent(u));
      }
    };
  }
};

// Initializes the search over tight edges: the number of steps to each vertex is 0 at the sources.
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

struct Step {
  uint32_t *steps, step;
  int* any;

  template <class P, class Block>
  TP_HD auto bind(const P& p, Block& block) const {
    const auto at = block.global("steps", steps, p.args.vertices, Sharing::idempotent);
    const auto found = block.global("any", any, 1, Sharing::idempotent);
    return [=, step = step](int64_t u, int64_t v, bool) {
      if (uint32_t(at[u]) != step - 1 || uint32_t(at[v]) != no_step) return;
      at[v] = step;
      found[0] = 1;
    };
  }
};

struct SetFlatParents {
  const uint32_t* steps;

  template <class P, class Block>
  TP_HD auto bind(const P& p, Block& block) const {
    const auto parents = p.parents(block);
    const auto at = block.global("steps", steps, p.args.vertices);
    return [=](int64_t u, int64_t v, bool flat) {
      if (flat && uint32_t(at[u]) < uint32_t(at[v]))
        parents.template atomic<Min<typename P::Parent>>(v, typename P::Parent(u));
    };
  }
};

// Finds the parents of all vertices, given the distances; sources are their own parents, all others have none yet.
template <class P>
void find_parents(const char* rung, const P& p, const Hubs<typename P::Id>& hubs, Context& context) {
  const int64_t vertices = p.args.vertices, int_bytes = int64_t(sizeof(int));
  const auto visit = [&](auto found) {
    context.clear(hubs.count, int64_t(sizeof(int64_t)));
    walk(context, rung, Tight<P, decltype(found)>{p, {vertices}, found}, hubs, vertices * lanes);
  };
  int* any = context.workspace<int>(1);
  context.clear(any, int_bytes);
  visit(SetParents{any});
  if (read_back(any, context) == 0) return;
  auto* steps = context.workspace<uint32_t>(vertices);
  launch(context, rung, vertices, StartSteps<P>{p, steps});
  for (uint32_t step = 1; read_back(any, context) != 0; ++step) {
    context.clear(any, int_bytes);
    visit(Step{steps, step, any});
  }
  visit(SetFlatParents{steps});
}

}  // namespace tp::sssp
