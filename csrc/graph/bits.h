// What the kernels of bit_parallel share: masks of searches, the arrays of a batch and of a level, and how a block
// appends vertices to queues.
#pragma once
#include "core/bits.h"
#include "graph/in_edges.h"

namespace tp::graph {

using Mask = uint64_t;
constexpr int most_searches = 64, buckets = 3;

TP_HD constexpr int lanes_of(int bucket) { return bucket == 0 ? 8 : bucket == 1 ? 32 : threads; }
TP_HD constexpr int bucket_of(int64_t degree) { return degree < 64 ? 0 : degree < 8 * threads ? 1 : 2; }

struct Or {
  TP_HD static Mask combine(Mask a, Mask b) { return a | b; }
};

// The counts of one level: the vertices in each queue of the frontier, the edges that leave them, and the candidates
// from which the level was made.
struct Sizes {
  int64_t frontier[buckets], edges, candidates[buckets];
};
enum Counter { of_frontier = 0, of_edges = buckets, of_candidates = buckets + 1, counters = 2 * buckets + 1 };

template <class Id>
struct Level {
  Mask* visit;     // [vertices]
  Id* frontier;    // bucket b begins at b * vertices
  int64_t* sizes;  // laid out as struct Sizes

  template <class Block>
  TP_HD auto bind_sizes(Block& block) const {
    return block.global("sizes", sizes, counters);
  }
};

// A batch of up to most_searches searches. g.args describes them.
template <class G_>
struct Batch {
  using G = G_;
  using Id = typename G::Id;
  using Parent = typename G::Parent;
  G g;
  Mask* seen;
  Id* candidates;           // bucket b begins at b * vertices
  int* queued;              // counts up from 0; the thread that raises it from 0 appends the vertex to the candidates
  const int64_t* descents;  // *descents is 0 if all rows of in-edges are sorted

  TP_HD int64_t vertices() const { return g.args.vertices; }
  TP_HD Mask all() const { return ~Mask(0) >> (most_searches - g.args.searches); }
  template <class Block, class T>
  TP_HD auto of_vertices(Block& block, const char* name, T* data) const {
    return block.global(name, data, vertices());
  }
  template <class Block>
  TP_HD auto queue(Block& block, const char* name, Id* data) const {
    return block.global(name, data, buckets * vertices());
  }
  template <class Block>
  TP_HD auto levels(Block& block) const {
    return block.global("levels", g.args.levels, g.args.searches * vertices());
  }
  template <class Block>
  TP_HD auto parents(Block& block) const {
    return block.global("parents", static_cast<Parent*>(g.args.parents), g.args.searches * vertices());
  }
};

// Appends a block's vertices to the three queues. The block collects them in shared memory, and at the end reserves
// room for them by one atomic per queue. A vertex for which there is no slot in shared memory is appended at once.
template <class Block, class Id>
class Gathered {
  template <class T>
  using Shared = decltype(std::declval<Block&>().template shared<T>("", 0));
  template <class T>
  using Global = decltype(std::declval<Block&>().global("", static_cast<T*>(nullptr), 0));

 public:
  static constexpr int slots = 512;
  static constexpr int64_t shared_bytes = buckets * slots * int64_t(sizeof(Id)) + (threads + 2 * buckets) * 8;

  // The sizes of the queues are counts[first] and on. For a frontier, the edges that leave it are counted as well.
  TP_HD Gathered(Block& block, const Global<Id>& queue, int64_t capacity, const Global<int64_t>& counts, Counter first)
      : queue_(queue),
        counts_(counts),
        capacity_(capacity),
        first_(first),
        begins_(block.template shared<int64_t>("begins", buckets)),
        sums_(block.template shared<int64_t>("sums", threads)),
        sizes_(block.template shared<int>("gathered", buckets)),
        vertices_(block.template shared<Id>("gathered vertices", buckets * slots)),
        edges_(block.template per_lane<int64_t>("edges")) {
    block.phase("clear", [&](int t) {
      if (t < buckets) sizes_[t] = 0;
      edges_[t] = 0;
    });
  }
  TP_HD void add(int t, int64_t vertex, int64_t degree) {
    const int bucket = bucket_of(degree), slot = sizes_.template atomic<Sum<int>>(bucket, 1);
    edges_[t] += degree;
    if (slot < slots) {
      vertices_[bucket * slots + slot] = Id(vertex);
    } else {
      const int64_t index = counts_.template atomic<Sum<int64_t>>(first_ + bucket, 1);
      queue_[bucket * capacity_ + index] = Id(vertex);
    }
  }
  TP_HD void store(Block& block) {
    block.phase("sum", [&](int t) { sums_[t] = edges_[t]; });
    block.phase("reserve", [&](int t) {
      if (t < buckets) {
        const int size = sizes_[t];
        if (size > 0) begins_[t] = counts_.template atomic<Sum<int64_t>>(first_ + t, tp::min(size, slots));
      } else if (t == buckets && first_ == of_frontier) {
        int64_t edges = 0;
        for (int i = 0; i < threads; ++i) {
          const int64_t theirs = sums_[i];
          edges += theirs;
        }
        if (edges > 0) counts_.template atomic<Sum<int64_t>>(of_edges, edges);
      }
    });
    block.phase("commit", [&](int t) {
      for (int bucket = 0; bucket < buckets; ++bucket) {
        const int size = sizes_[bucket];
        for (int i = t; i < tp::min(size, slots); i += threads) {
          const Id vertex = vertices_[bucket * slots + i];
          const int64_t begin = begins_[bucket];
          queue_[bucket * capacity_ + begin + i] = vertex;
        }
      }
    });
  }

 private:
  Global<Id> queue_;
  Global<int64_t> counts_;
  int64_t capacity_;
  int first_;
  Shared<int64_t> begins_, sums_;
  Shared<int> sizes_;
  Shared<Id> vertices_;
  decltype(std::declval<Block&>().template per_lane<int64_t>("")) edges_;
};

}  // namespace tp::graph
