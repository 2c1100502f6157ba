// A push divides the edges of the frontier into pieces of equal length, with 32 lanes per piece, because a frontier may
// consist of a single vertex with a million edges. A pull gives eight vertices to each lane, and divides the longest
// rows into pieces as well. In either direction, the last kernel looks at all vertices of the part to write the bitmap
// of the new level.
#include "graph/part/part.h"
#include "graph/search.h"

namespace tp::graph::part {
namespace {

constexpr const char* name = "bfs of a part";
constexpr int lanes = 32, piece = 8 * lanes;  // edges
constexpr int64_t long_row = 8 * piece;       // one lane pulls along rows of up to this many edges
constexpr int64_t most_blocks = 1056;         // each block adds its counts once

// Edges first to first + piece - 1 of a vertex, or fewer at the end of its list.
struct Piece {
  int64_t vertex, first;
};

struct Pieces {
  Piece* data;
  int64_t capacity;
  int64_t* size;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    return block.global("pieces", data, capacity);
  }
  template <class Block>
  TP_HD auto bind_size(Block& block) const {
    return block.global("size", size, 1);
  }
};

// Writes the pieces of a vertex from index `at` on; returns the index after them.
template <class Array>
TP_HD int64_t write_pieces(const Array& to, int64_t at, int64_t capacity, int64_t vertex, int64_t degree) {
  for (int64_t edge = 0; edge < degree && at < capacity; edge += piece) to[at++] = Piece{vertex, edge};
  return at;
}

// Calls f(vertex, i) for edge i of the vertex, for all edges of all pieces.
template <class Block, class F>
TP_HD void for_each_in_pieces(Block& block, const char* phase, const Pieces& pieces, F f) {
  const auto from = pieces.bind(block);
  const auto count = pieces.bind_size(block);
  const int64_t n = block.uniform("count", [&] {
    const int64_t size = count[0];
    return tp::min(size, pieces.capacity);
  });
  for_each(block, phase, n * lanes, [&](int64_t i) {
    const Piece mine = from[i / lanes];
    for (int64_t edge = mine.first + i % lanes; edge < mine.first + piece; edge += lanes) f(mine.vertex, edge);
  });
}

// Divides the edges of the frontier into pieces.
template <class G>
struct Collect {
  G g;
  Args args;
  Pieces pieces;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto out = g.out(block);
    const int64_t words = ceil_div(args.vertices, int64_t(word));
    const auto frontier = block.global("frontier", args.frontier, words);
    const auto to = pieces.bind(block);
    const auto size = pieces.bind_size(block);
    for_each(block, "collect", words, [&](int64_t i) {
      const uint32_t bits = frontier[i];
      if (bits == 0) return;
      const int64_t first = i * word, last = tp::min(first + word, args.vertices);
      int64_t mine = 0;
      for (int64_t vertex = first; vertex < last; ++vertex) {
        if (bits >> (vertex - first) & 1) mine += ceil_div(out.degree(vertex), int64_t(piece));
      }
      if (mine == 0) return;
      int64_t at = size.template atomic<Sum<int64_t>>(0, mine);
      for (int64_t vertex = first; vertex < last; ++vertex) {
        if (bits >> (vertex - first) & 1) at = write_pieces(to, at, pieces.capacity, vertex, out.degree(vertex));
      }
    });
  }
};

// Pushes along all pieces. A vertex that another lane has found in this level may still get a smaller parent.
template <class G>
struct Push {
  using Parent = typename G::Parent;
  G g;
  Args args;
  Pieces pieces;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto out = g.out(block);
    const auto levels = block.global("levels", args.levels, args.count, Sharing::idempotent);
    const auto parents = block.global("parents", static_cast<Parent*>(args.parents), args.count);
    for_each_in_pieces(block, "push", pieces, [&](int64_t from, int64_t number) {
      const int64_t edge = out.begin(from) + number;
      if (edge >= out.end(from)) return;
      const int64_t neighbor = out[edge];
      if (!is_vertex(neighbor, g.args, edge)) return;
      const int64_t vertex = neighbor - args.begin;
      if (uint64_t(vertex) >= uint64_t(args.count)) return;
      const int32_t theirs = levels[vertex];
      if (theirs != unreached && theirs != args.level) return;
      levels[vertex] = args.level;
      parents.template atomic<Min<Parent>>(vertex, Parent(from));
    });
  }
};

// Pulls along the long rows that Find has left. The lane that finds the first neighbour labels the vertex, as Find
// does.
template <class G>
struct PullLong {
  using Parent = typename G::Parent;
  G g;
  Args args;
  Pieces pieces;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto in = g.in(block);
    const auto frontier = block.global("frontier", args.frontier, ceil_div(args.vertices, int64_t(word)));
    const auto levels = block.global("levels", args.levels, args.count);
    const auto parents = block.global("parents", static_cast<Parent*>(args.parents), args.count);
    const auto found = block.global("found", args.found, ceil_div(args.count, int64_t(word)));
    const auto sums = block.global("sums", args.sums, 2);
    for_each_in_pieces(block, "pull", pieces, [&](int64_t vertex, int64_t number) {
      const int64_t begin = in.begin(args.begin + vertex), end = in.end(args.begin + vertex), edge = begin + number;
      if (edge >= end) return;
      const int64_t neighbor = in[edge];
      if (!is_vertex(neighbor, g.args, edge)) return;
      const uint32_t bits = frontier[neighbor / word];
      if (!(bits >> (neighbor % word) & 1)) return;
      if (parents.template atomic<Min<Parent>>(vertex, Parent(neighbor)) != Parent(-1)) return;
      levels[vertex] = args.level;
      found.template atomic<BitOr<uint32_t>>(vertex / word, uint32_t(1) << (vertex % word));
      sums.template atomic<Sum<int64_t>>(0, 1);
      sums.template atomic<Sum<int64_t>>(1, end - begin);
    });
  }
};

// Pulls, if that is the direction, and writes the bitmap and the sums. A lane handles the vertices of one byte of the
// bitmap at a time, and goes on to the next vertex as soon as it can, so no lane waits for one whose vertices have many
// edges. In-edges are sorted, so the first one that comes from the frontier gives the smallest parent.
template <class G>
struct Find {
  using Parent = typename G::Parent;
  static constexpr int byte = 8;  // vertices in a byte of the bitmap
  static constexpr int64_t shared_bytes = 2 * threads * int64_t(sizeof(int64_t));
  G g;
  Args args;
  Pieces long_rows;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto in = g.in(block);
    const auto frontier = block.global("frontier", args.frontier, ceil_div(args.vertices, int64_t(word)));
    const auto levels = block.global("levels", args.levels, args.count);
    const auto parents = block.global("parents", static_cast<Parent*>(args.parents), args.count);
    const auto to = long_rows.bind(block);
    const auto size = long_rows.bind_size(block);
    const int64_t bytes = ceil_div(args.count, int64_t(word)) * (word / byte);
    const auto found = block.global("found", reinterpret_cast<uint8_t*>(args.found), bytes);
    const auto vertices = block.template shared<int64_t>("vertices", threads);
    const auto edges = block.template shared<int64_t>("edges", threads);
    block.phase("find", [&](int t) {
      int64_t my_vertices = 0, my_edges = 0;
      for (int64_t i = block.index().x * threads + t; i < bytes; i += block.grid().x * threads) {
        const int64_t first = i * byte;
        unsigned open = 0, hits = 0;
        for (int k = 0; k < byte; ++k) {
          const int32_t level = first + k < args.count ? int32_t(levels[first + k]) : 0;
          open |= unsigned(level == unreached) << k;
          hits |= unsigned(level == args.level) << k;
        }
        if (args.pull) {
          int64_t edge = 0, end = 0, degree = 0;
          for (int k = -1;;) {
            if (edge == end) {
              do ++k;
              while (k < byte && !(open >> k & 1));
              if (k == byte) break;
              edge = in.begin(args.begin + first + k);
              end = in.end(args.begin + first + k);
              degree = end - edge;
              if (degree <= long_row) continue;
              const int64_t at = size.template atomic<Sum<int64_t>>(0, ceil_div(degree, int64_t(piece)));
              write_pieces(to, at, long_rows.capacity, first + k, degree);
              edge = end;
              continue;
            }
            const int64_t neighbor = in[edge++];
            if (!is_vertex(neighbor, g.args, edge - 1)) continue;
            const uint32_t bits = frontier[uint64_t(neighbor) / word];
            if (!(bits >> (neighbor % word) & 1)) continue;
            levels[first + k] = args.level;
            parents[first + k] = Parent(neighbor);
            hits |= 1u << k;
            my_edges += degree;
            edge = end;
          }
        } else {
          for (int k = 0; k < byte; ++k) {
            if (hits >> k & 1) my_edges += in.degree(args.begin + first + k);
          }
        }
        found[i] = uint8_t(hits);
        for (; hits != 0; hits &= hits - 1) ++my_vertices;
      }
      vertices[t] = my_vertices;
      edges[t] = my_edges;
    });
    add_up(block, vertices, edges);
  }

  // Adds up the counts of a block's threads, and adds them to the sums of the level.
  template <class Block, class Counts>
  TP_HD void add_up(Block& block, const Counts& vertices, const Counts& edges) const {
    const auto sums = block.global("sums", args.sums, 2);
    for (int half = threads / 2; half > 0; half /= 2) {
      block.phase("sum", [&](int t) {
        if (t >= half) return;
        const int64_t more_vertices = vertices[t + half], more_edges = edges[t + half];
        vertices[t] += more_vertices;
        edges[t] += more_edges;
      });
    }
    block.phase("add", [&](int t) {
      if (t > 1) return;
      const int64_t sum = t == 0 ? int64_t(vertices[0]) : int64_t(edges[0]);
      if (sum > 0) sums.template atomic<Sum<int64_t>>(t, sum);
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
  const int64_t rows = args.pull ? args.edges / long_row : tp::min(args.frontier_size, args.vertices);
  const int64_t capacity = rows + args.edges / piece;
  const Pieces pieces{context.workspace<Piece>(capacity), capacity, context.workspace<int64_t>(1)};
  context.clear(args.sums, 2 * int64_t(sizeof(int64_t)));
  context.clear(pieces.size, int64_t(sizeof(int64_t)));
  if (!args.pull) {
    launch(context, name, ceil_div(args.vertices, int64_t(word)), Collect<G>{g, args, pieces});
    launch_some(context, capacity * lanes, Push<G>{g, args, pieces});
  }
  const int64_t bytes = ceil_div(args.count, int64_t(word)) * (word / Find<G>::byte);
  launch_some(context, bytes, Find<G>{g, args, pieces}, Find<G>::shared_bytes);
  if (args.pull) launch_some(context, capacity * lanes, PullLong<G>{g, args, pieces});
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
