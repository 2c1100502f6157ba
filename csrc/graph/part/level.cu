// A push takes the edges of the frontier in pieces of equal length, a warp of lanes for each, because a frontier may
// consist of one vertex with a million edges. Then all vertices of the part are looked at, by a pull as by a push:
// which of them are in the new level makes the bitmap.
#include "graph/part/part.h"
#include "graph/search.h"

namespace tp::graph::part {
namespace {

constexpr const char* name = "bfs of a part";
constexpr int lanes = 32, piece = 8 * lanes;  // edges
constexpr int64_t most_blocks = 2112;         // each of them counts what it found once

// Some edges that leave a vertex of the frontier: from number `first` on, at most `piece`.
struct Piece {
  int64_t vertex, first;
};

template <class G>
struct Collect {
  G g;
  Args args;
  Piece* pieces;
  int64_t capacity;
  int64_t* size;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto out = g.out(block);
    const int64_t words = ceil_div(args.vertices, int64_t(word));
    const auto frontier = block.global("frontier", args.frontier, words);
    const auto to = block.global("pieces", pieces, capacity);
    const auto count = block.global("size", size, 1);
    for_each(block, "collect", words, [&](int64_t i) {
      const uint32_t bits = frontier[i];
      if (bits == 0) return;
      const int64_t first = i * word, last = tp::min(first + word, args.vertices);
      int64_t mine = 0;
      for (int64_t vertex = first; vertex < last; ++vertex) {
        if (bits >> (vertex - first) & 1) mine += ceil_div(out.degree(vertex), int64_t(piece));
      }
      if (mine == 0) return;
      int64_t at = count.template atomic<Sum<int64_t>>(0, mine);
      for (int64_t vertex = first; vertex < last; ++vertex) {
        if (!(bits >> (vertex - first) & 1)) continue;
        const int64_t degree = out.degree(vertex);
        for (int64_t edge = 0; edge < degree && at < capacity; edge += piece) to[at++] = {vertex, edge};
      }
    });
  }
};

// A vertex that another lane has found in this level may still get a smaller parent.
template <class G>
struct Push {
  using Parent = typename G::Parent;
  G g;
  Args args;
  const Piece* pieces;
  int64_t capacity;
  const int64_t* size;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto out = g.out(block);
    const auto from = block.global("pieces", pieces, capacity);
    const auto count = block.global("size", size, 1);
    const auto levels = block.global("levels", args.levels, args.count, Sharing::idempotent);
    const auto parents = block.global("parents", static_cast<Parent*>(args.parents), args.count);
    const int64_t n = block.uniform("count", [&] {
      const int64_t pieces = count[0];
      return tp::min(pieces, capacity);
    });
    for_each(block, "push", n * lanes, [&](int64_t i) {
      const Piece mine = from[i / lanes];
      const int64_t begin = out.begin(mine.vertex) + mine.first;
      const int64_t end = tp::min(begin + piece, out.end(mine.vertex));
      for (int64_t edge = begin + i % lanes; edge < end; edge += lanes) {
        const int64_t neighbor = out[edge];
        if (!is_vertex(neighbor, g.args, edge)) continue;
        const int64_t vertex = neighbor - args.begin;
        if (uint64_t(vertex) >= uint64_t(args.count)) continue;
        const int32_t theirs = levels[vertex];
        if (theirs != unreached && theirs != args.level) continue;
        levels[vertex] = args.level;
        parents.template atomic<Min<Parent>>(vertex, Parent(mine.vertex));
      }
    });
  }
};

// Pulls, if that is the direction, and writes the bitmap and the sums. The in-edges of a vertex are in order: the first
// one from the frontier is that of the least parent.
template <class G>
struct Find {
  using Parent = typename G::Parent;
  static constexpr int64_t shared_bytes = threads * 9;
  G g;
  Args args;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto in = g.in(block);
    const int64_t words = ceil_div(args.vertices, int64_t(word));
    const auto frontier = block.global("frontier", args.frontier, words);
    const auto levels = block.global("levels", args.levels, args.count);
    const auto parents = block.global("parents", static_cast<Parent*>(args.parents), args.count);
    const auto found = block.global("found", args.found, ceil_div(args.count, int64_t(word)));
    const auto sums = block.global("sums", args.sums, 2);
    const auto shared_edges = block.template shared<int64_t>("edges", threads);
    const auto hits = block.template shared<uint8_t>("hits", threads);
    auto vertices = block.template per_lane<int64_t>("vertices");
    auto edges = block.template per_lane<int64_t>("edges of this lane");
    block.phase("clear", [&](int t) { vertices[t] = edges[t] = 0; });
    const int64_t stride = block.grid().x * threads;
    for (int64_t first = block.index().x * threads; first < args.count; first += stride) {
      block.phase("find", [&](int t) {
        hits[t] = 0;
        const int64_t vertex = first + t;
        if (vertex >= args.count) return;
        int32_t mine = levels[vertex];
        if (mine != unreached && mine != args.level) return;
        const int64_t begin = in.begin(args.begin + vertex), end = in.end(args.begin + vertex);
        if (args.pull && mine == unreached) {
          for (int64_t edge = begin; edge < end; ++edge) {
            const int64_t neighbor = in[edge];
            if (!is_vertex(neighbor, g.args, edge)) continue;
            const uint32_t bits = frontier[neighbor / word];
            if (!(bits >> (neighbor % word) & 1)) continue;
            levels[vertex] = mine = args.level;
            parents[vertex] = Parent(neighbor);
            break;
          }
        }
        if (mine != args.level) return;
        hits[t] = 1;
        edges[t] += end - begin;
      });
      block.phase("pack", [&](int t) {
        if (t >= threads / word || first + t * word >= args.count) return;
        uint32_t bits = 0;
        for (int i = 0; i < word; ++i) {
          const uint8_t hit = hits[t * word + i];
          bits |= uint32_t(hit) << i;
          vertices[t] += hit;
        }
        found[first / word + t] = bits;
      });
    }
    block.phase("sum", [&](int t) {
      shared_edges[t] = edges[t];
      if (vertices[t] > 0) sums.template atomic<Sum<int64_t>>(0, vertices[t]);
    });
    block.phase("add", [&](int t) {
      if (t > 0) return;
      int64_t all = 0;
      for (int i = 0; i < threads; ++i) {
        const int64_t theirs = shared_edges[i];
        all += theirs;
      }
      if (all > 0) sums.template atomic<Sum<int64_t>>(1, all);
    });
  }
};

template <class Kernel>
void launch_some(Context& context, int64_t n, const Kernel& kernel, int64_t shared_bytes = 0) {
  const int64_t blocks = tp::min(ceil_div(n, int64_t(threads)), most_blocks);
  simt::launch(context, name, {blocks}, threads, shared_bytes, kernel);
}

template <class G>
void search_with(const G& g, const Args& args, Context& context) {
  context.clear(args.sums, 2 * int64_t(sizeof(int64_t)));
  if (!args.pull) {
    const int64_t capacity = tp::min(args.frontier_size, args.vertices) + args.edges / piece;
    Piece* pieces = context.workspace<Piece>(capacity);
    int64_t* size = context.workspace<int64_t>(1);
    context.clear(size, int64_t(sizeof(int64_t)));
    launch(context, name, ceil_div(args.vertices, int64_t(word)), Collect<G>{g, args, pieces, capacity, size});
    launch_some(context, capacity * lanes, Push<G>{g, args, pieces, capacity, size});
  }
  launch_some(context, args.count, Find<G>{g, args}, Find<G>::shared_bytes);
}

}  // namespace

void search(const Args& args, Context& context) {
  with_types(args, [&](auto row, auto id) {
    graph::Args shared{};
    static_cast<Topology&>(shared) = args;
    search_with(Graph<decltype(row), decltype(id)>{shared}, args, context);
  });
}

}  // namespace tp::graph::part
