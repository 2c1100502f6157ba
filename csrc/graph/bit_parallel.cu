// Up to 64 searches at once, each of which is one bit of a word. Every vertex has a mask of the searches that have
// reached it (`seen`), and a mask of those that reached it in the last level (`visit`). An edge passes on the bits of
// all searches in one step (after Then et al., 2014, who call it MS-BFS).
//
// A level has two parts. First, candidates are collected: every vertex of the frontier, which is kept in queues, finds
// its neighbours that lack some of its bits, and each of these becomes a candidate once. If many edges leave the
// frontier it is faster to make every vertex a candidate that some search has not reached. Second, each candidate
// pulls: it looks along its in-edges for the bits that it lacks. So only the lanes of a vertex write its masks, levels
// and parents, and its parent in each search is the smallest neighbour that has the bit.
//
// Bits of `visit` from before the last level are never cleared. They do no harm, because all neighbours have them
// already.
//
// There are three queues, by degree: a vertex gets 8 lanes, a warp or a block.
#include "graph/bits_pull.h"

namespace tp::graph {
namespace {

constexpr int64_t most_blocks = 2048;
constexpr int64_t alpha =
    8;  // every vertex is a candidate if more than 1 / alpha of all vertices and edges leave the frontier

// Counts the positions at which col_idx decreases within a row; the count is 0 if all rows are sorted. It is the number
// of decreases between neighbouring edges, minus those from the last edge of a row to the first edge of the next.
template <class G>
struct Descents {
  G g;
  int64_t* descents;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto in = g.in(block);
    const auto total = block.global("descents", descents, 1);
    auto sum = block.template shared<int64_t>("sum", 1);
    block.phase("clear", [&](int t) {
      if (t == 0) sum[0] = 0;
    });
    block.phase("count", [&](int t) {
      const int64_t lane = block.index().x * threads + t, lanes = block.grid().x * threads;
      int64_t mine = 0;
      for (int64_t edge = lane; edge + 1 < g.args.edges; edge += lanes) mine += in[edge] > in[edge + 1];
      for (int64_t vertex = lane; vertex < g.args.vertices; vertex += lanes) {
        const int64_t begin = in.begin(vertex);
        if (begin > 0 && begin < in.end(vertex)) mine -= in[begin - 1] > in[begin];
      }
      if (mine != 0) sum.template atomic<Sum<int64_t>>(0, mine);
    });
    block.phase("add", [&](int t) {
      const int64_t mine = sum[0];
      if (t == 0 && mine != 0) total.template atomic<Sum<int64_t>>(0, mine);
    });
  }
};

template <class B>
struct StartBits {
  using Id = typename B::Id;
  static constexpr int64_t shared_bytes = 0;
  B b;
  Level<Id> to;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const Args& a = b.g.args;
    const auto sources = block.global("sources", a.sources, a.searches * a.num_sources);
    const auto out = b.g.out(block);
    const auto levels = b.levels(block);
    const auto parents = b.parents(block);
    const auto seen = b.of_vertices(block, "seen", b.seen);
    const auto visit = b.of_vertices(block, "visit", to.visit);
    const auto sizes = to.bind_sizes(block);
    Gathered<Block, Id> gathered(block, b.queue(block, "frontier", to.frontier), a.vertices, sizes, of_frontier);
    for_each(block, "start", a.searches * a.num_sources, [&](int64_t i) {
      const int64_t source = sources[i], search = i / a.num_sources;
      if (uint64_t(source) >= uint64_t(a.vertices)) return;
      const Mask bit = Mask(1) << search, before = seen.template atomic<Or>(source, bit);
      if ((before & bit) != 0) return;
      visit.template atomic<Or>(source, bit);
      levels[search * a.vertices + source] = 0;
      parents[search * a.vertices + source] = typename B::Parent(source);
      if (before == 0) gathered.add(int(i % threads), source, out.degree(source));
    });
    gathered.store(block);
  }
};

// Finds the neighbours of the frontier that lack some of its bits, and appends them to the candidates.
template <class B>
struct PushBits {
  using Id = typename B::Id;
  static constexpr int64_t shared_bytes = 0;
  B b;
  Level<Id> from, to;
  Sizes sizes;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto out = b.g.out(block);
    const auto in = b.g.in(block);
    const auto visit = b.of_vertices(block, "visit", from.visit);
    const auto seen = b.of_vertices(block, "seen", b.seen);
    const auto queued = b.of_vertices(block, "queued", b.queued);
    const auto frontier = b.queue(block, "frontier", from.frontier);
    const auto candidates = b.queue(block, "candidates", b.candidates);
    Gathered<Block, Id> gathered(block, candidates, b.vertices(), to.bind_sizes(block), of_candidates);
    for (int bucket = buckets - 1; bucket >= 0; --bucket) {
      const int lanes = lanes_of(bucket);
      for_each(block, "push", sizes.frontier[bucket] * lanes, [&](int64_t i) {
        const Id vertex = frontier[bucket * b.vertices() + i / lanes];
        const Mask mine = visit[vertex];
        const int64_t end = out.end(vertex);
        for (int64_t edge = out.begin(vertex) + i % lanes; edge < end; edge += lanes) {
          const int64_t neighbor = out[edge];
          if (!is_vertex(neighbor, b.g.args, edge)) continue;
          const Mask theirs = seen[neighbor];
          if ((mine & ~theirs) == 0 || queued.template atomic<Sum<int>>(neighbor, 1) != 0) continue;
          gathered.add(int(i % threads), neighbor, in.degree(neighbor));
        }
      });
    }
    gathered.store(block);
  }
};

// Makes candidates of all vertices that have in-edges and that some search has not reached.
template <class B>
struct AllCandidates {
  using Id = typename B::Id;
  static constexpr int64_t shared_bytes = 0;
  B b;
  Level<Id> to;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto in = b.g.in(block);
    const auto seen = b.of_vertices(block, "seen", b.seen);
    const auto candidates = b.queue(block, "candidates", b.candidates);
    Gathered<Block, Id> gathered(block, candidates, b.vertices(), to.bind_sizes(block), of_candidates);
    for_each(block, "choose", b.vertices(), [&](int64_t vertex) {
      const Mask mine = seen[vertex];
      const int64_t degree = in.degree(vertex);
      if (mine != b.all() && degree > 0) gathered.add(int(vertex % threads), vertex, degree);
    });
    gathered.store(block);
  }
};

// ---- the loop

// Launches a kernel that appends to queues: one lane per item, in at most most_blocks blocks.
template <class Kernel>
void launch_gathering(Context& context, int64_t lanes, const Kernel& kernel) {
  const int64_t blocks = tp::min(ceil_div(lanes, int64_t(threads)), most_blocks);
  const int64_t bytes = kernel.shared_bytes + Gathered<simt::HostBlock, typename Kernel::Id>::shared_bytes;
  simt::launch(context, "bit_parallel", {blocks}, threads, bytes, kernel);
}

template <class G>
class BitSearch {
 public:
  using Id = typename G::Id;

  BitSearch(const G& g, Context& context) : context_(context), vertices_(g.args.vertices) {
    int64_t* descents = context.workspace<int64_t>(1);
    context.clear(descents, int64_t(sizeof(int64_t)));
    launch(context, "bit_parallel", tp::min(g.args.edges, most_blocks * threads), Descents<G>{g, descents},
           int64_t(sizeof(int64_t)));
    masks_ = context.workspace<Mask>(3 * vertices_);
    batch_ = {g, masks_, context.workspace<Id>(buckets * vertices_), context.workspace<int>(vertices_), descents};
    for (int i = 0; i < 2; ++i) {
      levels_[i] = {masks_ + (i + 1) * vertices_, context.workspace<Id>(buckets * vertices_),
                    context.workspace<int64_t>(counters)};
    }
  }

  // Runs the searches of one batch. `part` describes them.
  void run(const G& part) {
    batch_.g = part;
    const Args& a = part.args;
    G flat = part;
    flat.args.vertices *= a.searches;
    launch(context_, "bit_parallel", flat.args.vertices, Unreach<G>{flat});
    context_.clear(masks_, 3 * vertices_ * int64_t(sizeof(Mask)));
    context_.clear(batch_.queued, vertices_ * int64_t(sizeof(int)));
    Level<Id> from = levels_[0], to = levels_[1];
    context_.clear(from.sizes, int64_t(sizeof(Sizes)));
    launch_gathering(context_, a.searches * a.num_sources, StartBits<Batch<G>>{batch_, from});
    for (int64_t level = 1; level <= a.max_level; ++level) {
      const Sizes sizes = read_back(reinterpret_cast<const Sizes*>(from.sizes), context_);
      if (sizes.edges == 0) break;
      step(from, to, sizes, int32_t(level));
      std::swap(from, to);
    }
  }

 private:
  void step(const Level<Id>& from, const Level<Id>& to, const Sizes& sizes, int32_t level) {
    context_.clear(to.sizes, int64_t(sizeof(Sizes)));
    const bool all = sizes.edges > (vertices_ + batch_.g.args.edges) / alpha;
    if (all) {
      launch_gathering(context_, vertices_, AllCandidates<Batch<G>>{batch_, to});
    } else {
      int64_t lanes = 0;
      for (int bucket = 0; bucket < buckets; ++bucket) lanes += sizes.frontier[bucket] * lanes_of(bucket);
      launch_gathering(context_, lanes, PushBits<Batch<G>>{batch_, from, to, sizes});
    }
    // Only the device knows the number of candidates and their degrees, so launch one block per possible candidate.
    const int64_t candidates = all ? vertices_ : tp::min(sizes.edges, vertices_);
    launch_gathering(context_, candidates * threads, PullBits<Batch<G>>{batch_, from, to, level});
  }

  Context& context_;
  int64_t vertices_;
  Mask* masks_;
  Batch<G> batch_;
  Level<Id> levels_[2];
};

}  // namespace

void bit_parallel(const Args& args, Context& context) {
  with_graph(with_in_edges(args, context), [&](const auto& g) {
    using G = std::decay_t<decltype(g)>;
    BitSearch<G> search(g, context);
    for (int64_t first = 0; first < args.searches; first += most_searches) {
      G part = g;
      part.args.searches = tp::min(args.searches - first, int64_t(most_searches));
      part.args.sources += first * args.num_sources;
      part.args.levels += first * args.vertices;
      part.args.parents = static_cast<typename G::Id*>(args.parents) + first * args.vertices;
      search.run(part);
    }
  });
}

}  // namespace tp::graph
