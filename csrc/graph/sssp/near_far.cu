// Delta-stepping with two piles (Davidson, Baxter, Garland and Owens, Work-efficient parallel GPU methods for
// single-source shortest paths, 2014). A vertex whose distance has decreased must relax its edges. If the distance is
// below the limit, the vertex goes to the near pile and does so in the next step; otherwise it goes to the far pile and
// waits until the limit has moved past its distance. The limit moves by the mean weight times the size of a warp over
// the mean degree, and at least so far that the nearest vertex of the far pile becomes near.
//
// In a step, the vertices of the frontier lower the distances of their neighbours by atomic minima on their keys
// (walk.h). An atomic maximum of the step's number on the neighbour's `turn` ensures that a step
// queues it only once. Distances of the frontier itself may be lowered in the same step, which queues those vertices
// again; the step works on a copy of the distances made before it, so no lane reads what another writes. A vertex is in
// the far pile at most once; when the limit moves, vertices that have been processed in the meantime are dropped.
//
// The sizes of the frontiers stay on the device, and the host reads them only after a batch of steps; a step without a
// frontier does nothing.
//
// The parents are found last (tight_edges.h).
#include <cstddef>

#include "graph/sssp/tight_edges.h"

namespace tp::sssp {
namespace {

// The two lists of near vertices take turns: a step's frontier, and what it queues. Each list has room for all
// vertices.
template <class P>
struct Piles {
  using Id = typename P::Id;
  Id *near[2], *far;
  int64_t* sizes;  // [4]: of the lists of near vertices, of the far pile, and the number of hubs in a step
  int* turn;       // of each vertex, the last step that queued it
  int* waits;      // of each vertex, whether it is in the far pile

  template <class Block>
  TP_HD auto bind_sizes(Block& block) const {
    return block.global("sizes", sizes, 4);
  }
};
constexpr int size_of_far = 2, hub_count = 3;  // in `sizes`

template <class P>
struct Unreach {
  P p;
  int* any_hub;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto keys = p.keys(block);
    const auto parents = p.parents(block);
    const auto out = p.out(block);
    const auto found = block.global("any_hub", any_hub, 1, Sharing::idempotent);
    for_each(block, "unreach", p.args.vertices, [&](int64_t vertex) {
      keys[vertex] = unreached<typename P::T>;
      parents[vertex] = typename P::Parent(-1);
      if (out.degree(vertex) > hub_edges) found[0] = 1;
    });
  }
};

template <class P>
struct Start {
  P p;
  Piles<P> piles;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using K = Key<typename P::T>;
    const auto sources = block.global("sources", p.args.sources, p.args.num_sources);
    const auto keys = p.keys(block);
    const auto parents = p.parents(block);
    const auto near = block.global("near", piles.near[0], p.args.vertices);
    const auto sizes = piles.bind_sizes(block);
    for_each(block, "start", p.args.num_sources, [&](int64_t i) {
      const int64_t source = sources[i];
      if (keys.template atomic<Min<K>>(source, 0) == 0) return;
      parents[source] = typename P::Parent(source);
      near[sizes.template atomic<Sum<int64_t>>(0, 1)] = typename P::Id(source);
    });
  }
};

// Adds up the finite weights. The order is undefined, and so are the last bits of the sum; they affect only how the
// search is divided into steps, not its result.
template <class P>
struct AddWeights {
  P p;
  double* total;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto weights = p.weights(block);
    const auto sum = block.global("total", total, 1);
    auto part = block.template shared<double>("part", 1);
    block.phase("clear", [&](int t) {
      if (t == 0) part[0] = 0;
    });
    block.phase("add", [&](int t) {
      double mine = 0;
      const int64_t step = block.grid().x * block.threads();
      for (int64_t edge = block.index().x * block.threads() + t; edge < p.args.edges; edge += step) {
        const typename P::T weight = weights[edge];
        if (key_of(weight) < unreached<typename P::T>) mine += double(weight);
      }
      part.template atomic<Sum<double>>(0, mine);
    });
    block.phase("total", [&](int t) {
      const double mine = part[0];
      if (t == 0) sum.template atomic<Sum<double>>(0, mine);
    });
  }
};

// Copies the distances of the frontier's vertices, and clears the sizes of what the step will queue.
template <class P>
struct Copy {
  P p;
  Piles<P> piles;
  int from;
  typename P::T* distances;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto keys = p.keys(block);
    const auto frontier = block.global("frontier", piles.near[from], p.args.vertices);
    const auto to = block.global("copies", distances, p.args.vertices);
    const auto sizes = piles.bind_sizes(block);
    block.phase("copy", [&](int t) {
      const int64_t first = block.index().x * block.threads() + t, size = sizes[from];
      for (int64_t i = first; i < size; i += block.grid().x * block.threads()) {
        const typename P::Id vertex = frontier[i];
        const Key<typename P::T> key = keys[vertex];
        to[i] = distance_of<typename P::T>(key);
      }
      if (first == 0) {
        sizes[1 - from] = 0;
        sizes[hub_count] = 0;
      }
    });
  }
};

// The walk of a step. Its items are the vertices of the frontier.
template <class P>
struct Relax {
  using T = typename P::T;
  using Id = typename P::Id;
  P p;
  Listed<Id> items;
  const T* distances;  // of the frontier
  Piles<P> piles;
  int to;  // the list of near vertices that the step writes
  Key<T> limit;
  int step;

  template <class Block>
  TP_HD auto visit(Block& block) const {
    const auto out = p.out(block);
    const auto weights = p.weights(block);
    const auto keys = p.keys(block);
    const auto copies = block.global("copies", distances, p.args.vertices);
    const auto near = block.global("near", piles.near[to], p.args.vertices);
    const auto far = block.global("far", piles.far, p.args.vertices);
    const auto near_size = block.global("size of near", piles.sizes + to, 1);
    const auto far_size = block.global("size of far", piles.sizes + size_of_far, 1);
    const auto turn = block.global("turn", piles.turn, p.args.vertices);
    const auto waits = block.global("waits", piles.waits, p.args.vertices);
    return [=, limit = limit, step = step](int64_t item, int64_t, int64_t edge) {
      const int64_t vertex = out[edge];
      const T distance = copies[item], weight = weights[edge];
      const Key<T> offer = key_of(T(distance + weight));
      if (keys.template atomic<Min<Key<T>>>(vertex, offer) <= offer) return;
      if (offer < limit) {
        if (turn.template atomic<Max<int>>(vertex, step) == step) return;
        near[near_size.template atomic<Sum<int64_t>>(0, 1)] = Id(vertex);
      } else if (waits.template atomic<Max<int>>(vertex, 1) == 0) {
        far[far_size.template atomic<Sum<int64_t>>(0, 1)] = Id(vertex);
      }
    };
  }
};

// Finds the least key in the far pile that is not below the limit. It stores the complement of the key, so that an
// atomic maximum finds it and 0 means that there is none.
template <class P>
struct Nearest {
  using K = Key<typename P::T>;
  P p;
  Piles<P> piles;
  int64_t size;
  K limit, *found;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto keys = p.keys(block);
    const auto far = block.global("far", piles.far, p.args.vertices);
    const auto nearest = block.global("nearest", found, 1);
    auto least = block.template shared<K>("least", 1);
    block.phase("clear", [&](int t) {
      if (t == 0) least[0] = 0;
    });
    block.phase("find", [&](int t) {
      const int64_t step = block.grid().x * block.threads();
      K mine = 0;
      for (int64_t i = block.index().x * block.threads() + t; i < size; i += step) {
        const typename P::Id vertex = far[i];
        const K key = keys[vertex];
        if (key >= limit) mine = tp::max(mine, K(~key));
      }
      least.template atomic<Max<K>>(0, mine);
    });
    block.phase("give", [&](int t) {
      const K mine = least[0];
      if (t == 0) nearest.template atomic<Max<K>>(0, mine);
    });
  }
};

// Divides a far pile by the new limit: near vertices go to the frontier, the others to the other far pile.
template <class P>
struct Split {
  using K = Key<typename P::T>;
  using Id = typename P::Id;
  P p;
  const Id* pile;
  int64_t size;
  Piles<P> piles;
  int to;  // the list of near vertices for the next step
  K before, limit;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto keys = p.keys(block);
    const auto from = block.global("pile", pile, p.args.vertices);
    const auto near = block.global("near", piles.near[to], p.args.vertices);
    const auto far = block.global("far", piles.far, p.args.vertices);
    const auto sizes = piles.bind_sizes(block);
    const auto waits = block.global("waits", piles.waits, p.args.vertices);
    for_each(block, "split", size, [&](int64_t i) {
      const Id vertex = from[i];
      const K key = keys[vertex];
      if (key >= limit) {
        far[sizes.template atomic<Sum<int64_t>>(size_of_far, 1)] = vertex;
        return;
      }
      waits[vertex] = 0;
      if (key >= before) near[sizes.template atomic<Sum<int64_t>>(to, 1)] = vertex;
    });
  }
};

// ---- the loop

constexpr const char* rung = "near_far";
constexpr int64_t most_lanes = int64_t(1) << 19;  // in kernels whose blocks reduce to one atomic each
constexpr int batch = 8;  // steps between two reads by the host; a step without a frontier takes about 5 us on an H200

template <class P>
class Search {
 public:
  using T = typename P::T;
  using K = Key<T>;
  using Id = typename P::Id;

  Search(const P& p, Context& context) : p_(p), context_(context), vertices_(p.args.vertices) {}

  void run() {
    piles_ = {{list(), list()}, list(), cleared<int64_t>(4), cleared<int>(vertices_), cleared<int>(vertices_)};
    int* any_hub = cleared<int>(1);
    launch(context_, rung, vertices_, Unreach<P>{p_, any_hub});
    hubs_ = {list(), piles_.sizes + hub_count, read_back(any_hub, context_) != 0};
    find_distances();
    find_parents(rung, p_, hubs_, context_);
  }

 private:
  template <class X>
  X* cleared(int64_t n) {
    X* data = context_.workspace<X>(n);
    context_.clear(data, n * int64_t(sizeof(X)));
    return data;
  }
  Id* list() { return context_.workspace<Id>(vertices_); }

  T width() {
    double* total = cleared<double>(1);
    launch(context_, rung, tp::min(p_.args.edges, most_lanes), AddWeights<P>{p_, total}, int64_t(sizeof(double)));
    const double edges = double(tp::max(p_.args.edges, int64_t(1)));
    return T(read_back(total, context_) / edges * lanes * double(vertices_) / edges);
  }

  void find_distances() {
    copies_ = context_.workspace<T>(vertices_);
    K* nearest = context_.workspace<K>(1);
    Id* pile = list();
    launch(context_, rung, p_.args.num_sources, Start<P>{p_, piles_});
    const T width = this->width();
    limit_ = key_of(width);
    while (true) {
      Sizes sizes = empty_near();
      if (sizes.far == 0) break;
      // The limit moves past the nearest vertex of the far pile.
      context_.clear(nearest, int64_t(sizeof(K)));
      launch(context_, rung, tp::min(sizes.far, most_lanes), Nearest<P>{p_, piles_, sizes.far, limit_, nearest},
             int64_t(sizeof(K)));
      const K least = K(~read_back(nearest, context_));
      if (least == K(-1)) break;
      const K before = limit_;
      limit_ = tp::max(key_of(T(distance_of<T>(least) + width)), K(least + 1));
      std::swap(pile, piles_.far);
      context_.clear(piles_.sizes, int64_t(sizeof(Sizes)));
      launch(context_, rung, sizes.far, Split<P>{p_, pile, sizes.far, piles_, from_, before, limit_});
    }
  }

  struct Sizes {
    int64_t near[2], far;
  };
  static_assert(offsetof(Sizes, far) == size_of_far * sizeof(int64_t), "Sizes are the first elements of piles_.sizes");

  // Takes steps until no vertex is near.
  Sizes empty_near() {
    Sizes sizes;
    do {
      for (int i = 0; i < (context_.device.cuda ? batch : 1); ++i) take_step();
      sizes = read_back(reinterpret_cast<const Sizes*>(piles_.sizes), context_);
    } while (sizes.near[from_] > 0);
    return sizes;
  }

  void take_step() {
    const int64_t some_lanes = context_.device.cuda ? most_parts * graph::threads : graph::threads;
    launch(context_, rung, some_lanes, Copy<P>{p_, piles_, from_, copies_});
    const Listed<Id> frontier{piles_.near[from_], piles_.sizes + from_, vertices_};
    from_ = 1 - from_;
    walk(context_, rung, Relax<P>{p_, frontier, copies_, piles_, from_, limit_, ++step_}, hubs_, some_lanes);
  }

  P p_;
  Context& context_;
  int64_t vertices_;
  Piles<P> piles_;
  Hubs<Id> hubs_;
  T* copies_ = nullptr;
  K limit_ = 0;
  int from_ = 0, step_ = 0;  // the list that is the frontier
};

}  // namespace

void near_far(const Args& args, Context& context) {
  dispatch(Weights{}, args.dtype, args.op, [&](auto type) {
    graph::with_types(args, [&](auto row, auto id) {
      using P = Paths<typename decltype(type)::type, decltype(row), decltype(id)>;
      Search<P>(P{args}, context).run();
    });
  });
}

}  // namespace tp::sssp
