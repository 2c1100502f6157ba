// Vertices are renumbered by their position in the order, from the last to the first, so the lists hold the smaller
// numbers of later neighbours. In a graph of unequal degrees most lists contain the same few vertices of high degree;
// their numbers are small, so their marks lie close together and stay in the L1 cache. For each vertex, its list is
// marked, and the marks are summed over the lists of the vertices in it, which takes one load per entry and no branch.
//
// Threads take vertices as they become free. The work of a vertex is the total length of the lists that it looks up.
#include <algorithm>
#include <atomic>
#include <vector>

#include "graph/edges.h"
#include "graph/triangle_count/triangle_count.h"

namespace tp::triangle_count {
namespace {

template <class Row, class Id>
class Counter {
 public:
  Counter(const Args& args, Context& context)
      : args_(args),
        context_(context),
        edges_(graph::adjacency<Row, Id>(args.out, args)),
        vertices_(context.workspace<Id>(args.vertices)),
        numbers_(context.workspace<Id>(args.vertices)),
        begins_(context.workspace<Row>(args.vertices)),
        lengths_(context.workspace<Id>(args.vertices)),
        lists_(context.workspace<Id>(args.edges)) {}

  int64_t run() {
    number_vertices();
    for_each_vertex([&](Id vertex, std::vector<uint8_t>& marks) {
      make_list(vertex, marks);
      return int64_t(0);
    });
    return for_each_vertex([&](Id vertex, std::vector<uint8_t>& marks) { return count(vertex, marks); });
  }

 private:
  // Sums f(number, marks) over all vertices. Every thread has its own marks, which are all 0 before and after f.
  template <class F>
  int64_t for_each_vertex(F f) {
    constexpr int64_t piece = 64;
    std::atomic<int64_t> next{0}, sum{0};
    const int64_t workers = tp::min(ceil_div(args_.vertices, piece), int64_t(context_.device.threads));
    context_.parallel_for(workers, 1, [&](int64_t first, int64_t last) {
      for (; first < last; ++first) {
        std::vector<uint8_t> marks(size_t(args_.vertices), 0);
        int64_t mine = 0;
        for (int64_t i; (i = next.fetch_add(piece)) < args_.vertices;) {
          const int64_t end = tp::min(args_.vertices, i + piece);
          for (; i < end; ++i) mine += f(Id(i), marks);
        }
        sum += mine;
      }
    });
    return sum;
  }

  // Orders vertices by decreasing degree, and those of equal degree by decreasing id: a counting sort.
  void number_vertices() {
    int64_t most = 0;
    for (int64_t v = 0; v < args_.vertices; ++v) most = tp::max(most, edges_.degree(v));
    std::vector<int64_t> begins(size_t(most) + 2, 0);
    for (int64_t v = 0; v < args_.vertices; ++v) ++begins[size_t(most - edges_.degree(v) + 1)];
    for (size_t i = 1; i < begins.size(); ++i) begins[i] += begins[i - 1];
    for (int64_t v = args_.vertices - 1; v >= 0; --v) {
      const int64_t number = begins[size_t(most - edges_.degree(v))]++;
      numbers_[v] = Id(number);
      vertices_[number] = Id(v);
    }
  }

  // The distinct numbers of a vertex's later neighbours.
  void make_list(Id number, std::vector<uint8_t>& marks) {
    const int64_t vertex = vertices_[number], begin = edges_.begin(vertex), end = edges_.end(vertex);
    Id *const list = lists_ + begin, *tail = list;
    for (int64_t edge = begin; edge < end; ++edge) {
      if (!graph::is_vertex(edges_.ids[edge], args_, edge)) continue;
      const Id neighbor = numbers_[edges_.ids[edge]];
      if (neighbor >= number || marks[size_t(neighbor)] != 0) continue;
      marks[size_t(neighbor)] = 1;
      *tail++ = neighbor;
    }
    std::for_each(list, tail, [&](Id neighbor) { marks[size_t(neighbor)] = 0; });
    begins_[number] = Row(begin);
    lengths_[number] = Id(tail - list);
  }

  int64_t count(Id number, std::vector<uint8_t>& marks) const {
    const Id *const list = lists_ + begins_[number], *const end = list + lengths_[number];
    if (end - list < 2) return 0;
    std::for_each(list, end, [&](Id neighbor) { marks[size_t(neighbor)] = 1; });
    int64_t count = 0;
    for (const Id* neighbor = list; neighbor != end; ++neighbor) {
      const Id* const theirs = lists_ + begins_[*neighbor];
      const int64_t length = lengths_[*neighbor];
      for (int64_t i = 0; i < length; ++i) count += marks[size_t(theirs[i])];
    }
    std::for_each(list, end, [&](Id neighbor) { marks[size_t(neighbor)] = 0; });
    return count;
  }

  const Args& args_;
  Context& context_;
  const graph::Adjacency<const Row*, const Id*> edges_;
  Id *const vertices_, *const numbers_;  // by number, by vertex
  Row* const begins_;                    // of each list, by number
  Id *const lengths_, *const lists_;
};

}  // namespace

void threaded(const Args& args, Context& context) {
  graph::with_types(
      args, [&](auto row, auto id) { *args.count = Counter<decltype(row), decltype(id)>(args, context).run(); });
}

}  // namespace tp::triangle_count
