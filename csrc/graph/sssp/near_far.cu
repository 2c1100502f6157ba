// Delta-stepping with two piles (Davidson, Baxter, Garland and Owens, Work-efficient parallel GPU methods for
// single-source shortest paths, 2014). A vertex whose distance has decreased must relax its edges. If the distance is
// below the limit, the vertex goes to the near pile and does so in the next step; otherwise it goes to the far pile and
// waits until the limit has moved past its distance. The limit moves by the mean weight times the size of a warp over
// the mean degree, and at least so far that the nearest vertex of the far pile becomes near.
//
// In a step, 32 lanes per vertex of the frontier stride through its edges and lower the distances of its neighbours by
// atomic minima on their keys. An atomic maximum of the step's number on the neighbour's `turn` ensures that a step
// queues it only once. Distances of the frontier itself may be lowered in the same step, which queues those vertices
// again; the step works on a copy of the distances made before it, so no lane reads what another writes. A vertex is in
// the far pile at most once; when the limit moves, vertices that have been processed in the meantime are dropped.
//
// The parents are found last (tight_edges.h).
#include "graph/sssp/tight_edges.h"

namespace tp::sssp {
namespace {

struct Sizes {
  int64_t near, far;
};

// The vertices of the next step (near) and those that wait (far). Each list has room for all vertices.
template <class P>
struct Piles {
  using Id = typename P::Id;
  Id *near, *far;
  int64_t* sizes;  // as in struct Sizes
  int* turn;       // of each vertex, the last step that queued it
  int* waits;      // of each vertex, whether it is in the far pile

  template <class Block>
  TP_HD auto bind_sizes(Block& block) const {
    return block.global("sizes", sizes, 2);
  }
};

template <class P>
struct Unreach {
  P p;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto keys = p.keys(block);
    const auto parents = p.parents(block);
    for_each(block, "unreach", p.args.vertices, [&](int64_t vertex) {
      keys[vertex] = unreached<typename P::T>;
      parents[vertex] = typename P::Parent(-1);
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
    const auto near = block.global("near", piles.near, p.args.vertices);
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

// Copies the distances of the frontier's vertices.
template <class P>
struct Copy {
  P p;
  const typename P::Id* frontier;
  int64_t size;
  typename P::T* distances;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto keys = p.keys(block);
    const auto from = block.global("frontier", frontier, p.args.vertices);
    const auto to = block.global("copies", distances, p.args.vertices);
    for_each(block, "copy", size, [&](int64_t i) {
      const typename P::Id vertex = from[i];
      const Key<typename P::T> key = keys[vertex];
      to[i] = distance_of<typename P::T>(key);
    });
  }
};

template <class P>
struct Relax {
  using T = typename P::T;
  using Id = typename P::Id;
  P p;
  const Id* frontier;
  int64_t size;
  const T* distances;  // of the frontier
  Piles<P> piles;
  Key<T> limit;
  int step;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto out = p.out(block);
    const auto weights = p.weights(block);
    const auto keys = p.keys(block);
    const auto from = block.global("frontier", frontier, p.args.vertices);
    const auto copies = block.global("copies", distances, p.args.vertices);
    const auto near = block.global("near", piles.near, p.args.vertices);
    const auto far = block.global("far", piles.far, p.args.vertices);
    const auto sizes = piles.bind_sizes(block);
    const auto turn = block.global("turn", piles.turn, p.args.vertices);
    const auto waits = block.global("waits", piles.waits, p.args.vertices);
    for_each(block, "relax", size * lanes, [&](int64_t i) {
      const int64_t vertex = Id(from[i / lanes]);
      const T distance = copies[i / lanes];
      const int64_t end = out.end(vertex);
      for (int64_t edge = out.begin(vertex) + i % lanes; edge < end; edge += lanes) {
        const int64_t to = out[edge];
        const T weight = weights[edge];
        const Key<T> offer = key_of(T(distance + weight));
        if (keys.template atomic<Min<Key<T>>>(to, offer) <= offer) continue;
        if (offer < limit) {
          if (turn.template atomic<Max<int>>(to, step) == step) continue;
          near[sizes.template atomic<Sum<int64_t>>(0, 1)] = Id(to);
        } else if (waits.template atomic<Max<int>>(to, 1) == 0) {
          far[sizes.template atomic<Sum<int64_t>>(1, 1)] = Id(to);
        }
      }
    });
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
  K before, limit;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto keys = p.keys(block);
    const auto from = block.global("pile", pile, p.args.vertices);
    const auto near = block.global("near", piles.near, p.args.vertices);
    const auto far = block.global("far", piles.far, p.args.vertices);
    const auto sizes = piles.bind_sizes(block);
    const auto waits = block.global("waits", piles.waits, p.args.vertices);
    for_each(block, "split", size, [&](int64_t i) {
      const Id vertex = from[i];
      const K key = keys[vertex];
      if (key >= limit) {
        far[sizes.template atomic<Sum<int64_t>>(1, 1)] = vertex;
        return;
      }
      waits[vertex] = 0;
      if (key >= before) near[sizes.template atomic<Sum<int64_t>>(0, 1)] = vertex;
    });
  }
};

// ---- the loop

constexpr const char* rung = "near_far";
constexpr int64_t most_lanes = int64_t(1) << 19;  // in kernels whose blocks reduce to one atomic each

template <class P>
class Search {
 public:
  using T = typename P::T;
  using K = Key<T>;
  using Id = typename P::Id;

  Search(const P& p, Context& context) : p_(p), context_(context), vertices_(p.args.vertices) {}

  void run() {
    find_distances();
    find_parents(rung, p_, context_);
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
    Piles<P> piles{list(), list(), cleared<int64_t>(2), cleared<int>(vertices_), cleared<int>(vertices_)};
    Id *frontier = list(), *pile = list();
    T* copies = context_.workspace<T>(vertices_);
    K* nearest = context_.workspace<K>(1);
    launch(context_, rung, vertices_, Unreach<P>{p_});
    launch(context_, rung, p_.args.num_sources, Start<P>{p_, piles});
    const T width = this->width();
    K limit = key_of(width);
    int step = 0;
    for (Sizes sizes = of(piles); sizes.near > 0;) {
      while (sizes.near > 0) {
        std::swap(frontier, piles.near);
        context_.clear(piles.sizes, int64_t(sizeof(int64_t)));  // only the size of the near pile
        launch(context_, rung, sizes.near, Copy<P>{p_, frontier, sizes.near, copies});
        launch(context_, rung, sizes.near * lanes, Relax<P>{p_, frontier, sizes.near, copies, piles, limit, ++step});
        sizes = of(piles);
      }
      // No vertex is near, so the limit moves past the nearest vertex of the far pile.
      context_.clear(nearest, int64_t(sizeof(K)));
      launch(context_, rung, tp::min(sizes.far, most_lanes), Nearest<P>{p_, piles, sizes.far, limit, nearest},
             int64_t(sizeof(K)));
      const K least = sizes.far > 0 ? K(~read_back(nearest, context_)) : K(-1);
      if (least == K(-1)) break;
      const K before = limit;
      limit = tp::max(key_of(T(distance_of<T>(least) + width)), K(least + 1));
      std::swap(pile, piles.far);
      context_.clear(piles.sizes, int64_t(sizeof(Sizes)));
      launch(context_, rung, sizes.far, Split<P>{p_, pile, sizes.far, piles, before, limit});
      sizes = of(piles);
    }
  }

  static_assert(sizeof(Sizes) == 2 * sizeof(int64_t), "Sizes are read from two counters");
  Sizes of(const Piles<P>& piles) { return read_back(reinterpret_cast<const Sizes*>(piles.sizes), context_); }

  P p_;
  Context& context_;
  int64_t vertices_;
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
