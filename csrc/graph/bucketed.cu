// Three queues by degree: one thread for a vertex with few edges, a warp for more edges, and a block for many (§15.7,
// after Merrill and Garland, 2012). The thread that labels a vertex looks up its degree and chooses its queue.
#include "graph/search.h"

namespace tp::graph {
namespace {

constexpr int buckets = 3;

TP_HD constexpr int lanes_of(int bucket) { return bucket == 0 ? 1 : bucket == 1 ? 32 : threads; }
TP_HD constexpr int bucket_of(int64_t degree) { return degree < 32 ? 0 : degree < 4 * threads ? 1 : 2; }

// The vertices of queue b are at [b * capacity, b * capacity + sizes[b]).
template <class Id>
struct Buckets {
  Id* vertices;
  int64_t* sizes;
  int64_t capacity;

  template <class Block>
  TP_HD auto bind(Block& block, const char* name) const {
    return block.global(name, vertices, buckets * capacity);
  }
};

struct Sizes {
  int64_t of[buckets];
};

// Queues all vertices of level 0.
template <class G>
struct Fill {
  G g;
  Buckets<typename G::Id> to;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto out = g.out(block);
    const auto levels = g.levels(block);
    const auto queues = to.bind(block, "frontier");
    const auto sizes = block.global("sizes", to.sizes, buckets);
    for_each(block, "fill", g.args.vertices, [&](int64_t vertex) {
      const uint32_t level = levels[vertex];
      if (level != 0) return;
      const int bucket = bucket_of(out.degree(vertex));
      queues[bucket * to.capacity + sizes.template atomic<Sum<int64_t>>(bucket, 1)] = typename G::Id(vertex);
    });
  }
};

template <class G>
struct PushBucket {
  using Id = typename G::Id;
  G g;
  Buckets<Id> from, to;
  int bucket;
  int64_t size;
  uint32_t level;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto out = g.out(block);
    const auto levels = g.levels(block);
    const auto previous = from.bind(block, "previous frontier");
    const auto current = to.bind(block, "current frontier");
    const auto sizes = block.global("sizes", to.sizes, buckets);
    const int lanes = lanes_of(bucket);
    for_each(block, "push", size * lanes, [&](int64_t i) {
      const Id vertex = previous[bucket * from.capacity + i / lanes];
      const int64_t end = out.end(vertex);
      for (int64_t edge = out.begin(vertex) + i % lanes; edge < end; edge += lanes) {
        const int64_t neighbor = out[edge];
        if (!is_vertex(neighbor, g.args, edge)) continue;
        if (levels.template atomic<Min<uint32_t>>(neighbor, level) != no_level) continue;
        const int theirs = bucket_of(out.degree(neighbor));
        current[theirs * to.capacity + sizes.template atomic<Sum<int64_t>>(theirs, 1)] = Id(neighbor);
      }
    });
  }
};

template <class G>
void search(const G& g, Context& context) {
  using Id = typename G::Id;
  const auto make = [&] {
    const int64_t n = g.args.vertices;
    return Buckets<Id>{context.workspace<Id>(buckets * n), context.workspace<int64_t>(buckets), n};
  };
  Buckets<Id> from = make(), to = make();
  start("bucketed", g, context);
  context.clear(from.sizes, int64_t(sizeof(Sizes)));
  launch(context, "bucketed", g.args.vertices, Fill<G>{g, from});
  for (int64_t level = 1; level <= g.args.max_level; ++level) {
    const Sizes sizes = read_back(reinterpret_cast<const Sizes*>(from.sizes), context);
    if (sizes.of[0] + sizes.of[1] + sizes.of[2] == 0) break;
    context.clear(to.sizes, int64_t(sizeof(Sizes)));
    for (int b = 0; b < buckets; ++b) {
      const PushBucket<G> kernel{g, from, to, b, sizes.of[b], uint32_t(level)};
      launch(context, "bucketed", sizes.of[b] * lanes_of(b), kernel);
    }
    std::swap(from, to);
  }
  launch(context, "bucketed", g.args.vertices * Parents<G>::lanes, Parents<G>{g});
}

}  // namespace

void bucketed(const Args& args, Context& context) {
  with_graph(args, [&](const auto& g) { search(g, context); });
}

}  // namespace tp::graph
