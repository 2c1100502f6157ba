// Dijkstra's algorithm with a radix heap (Ahuja, Mehlhorn, Orlin and Tarjan, Faster algorithms for the shortest path
// problem, 1990). Keys that leave the heap never decrease, so a bucket is chosen by the highest bit in which a key
// differs from the last key that left: bucket 0 holds the entries with that very key, bucket i those whose highest
// differing bit is i - 1. When bucket 0 is empty, the entries of the first bucket that is not empty are distributed
// again, relative to the least of their keys, and each goes to an earlier bucket. So an entry moves at most once per
// bit of the key, and every move is sequential in memory.
//
// Parents are found during the search. A vertex that is nearer to the sources relaxes its edges before its neighbour
// leaves the heap, so the parent is the smallest vertex that offers the final distance. Only if there are flat tight
// edges does a search of the tight edges follow.
#include "graph/sssp/key.h"
#include "graph/sssp/parents.h"

namespace tp::sssp {
namespace {

template <class T, class Id>
class RadixHeap {
 public:
  struct Entry {
    Key<T> key;
    Id vertex;
  };

  explicit RadixHeap(const Key<T>* keys) : keys_(keys) {}

  void push(Key<T> key, Id vertex) { buckets_[bucket_of(key)].push_back({key, vertex}); }

  // Calls f(vertex) for every vertex in the order of its key; f may push greater keys or equal ones.
  template <class F>
  void drain(F f) {
    do {
      while (!buckets_[0].empty()) {
        const Entry entry = buckets_[0].back();
        buckets_[0].pop_back();
        if (is_current(entry)) f(entry.vertex);
      }
    } while (refill());
  }

 private:
  bool is_current(const Entry& entry) const { return keys_[entry.vertex] == entry.key; }

  int bucket_of(Key<T> key) const { return key == last_ ? 0 : 64 - __builtin_clzll(uint64_t(key ^ last_)); }

  // Distributes the first bucket that has current entries, and returns whether there is one.
  bool refill() {
    for (auto& bucket : buckets_) {
      const auto end = std::remove_if(bucket.begin(), bucket.end(), [&](const Entry& e) { return !is_current(e); });
      if (end == bucket.begin()) {
        bucket.clear();
        continue;
      }
      last_ = std::min_element(bucket.begin(), end, [](const Entry& a, const Entry& b) { return a.key < b.key; })->key;
      for (auto entry = bucket.begin(); entry != end; ++entry) push(entry->key, entry->vertex);
      bucket.clear();
      return true;
    }
    return false;
  }

  const Key<T>* keys_;
  Key<T> last_ = 0;
  std::vector<Entry> buckets_[8 * sizeof(T) + 1];
};

template <class T, class Row, class Id>
void search(const Args& args) {
  const auto out = graph::adjacency<Row, Id>(args.out, args);
  const T* const weights = static_cast<const T*>(args.weights);
  auto* const keys = static_cast<Key<T>*>(args.distances);
  Id* const parents = static_cast<Id*>(args.parents);
  std::fill_n(keys, args.vertices, unreached<T>);
  std::fill_n(parents, args.vertices, Id(-1));

  RadixHeap<T, Id> heap(keys);
  for (int64_t i = 0; i < args.num_sources; ++i) {
    const Id source = Id(args.sources[i]);
    if (parents[source] == source) continue;
    keys[source] = 0;
    parents[source] = source;
    heap.push(0, source);
  }
  bool any_flat = false;
  heap.drain([&](Id u) {
    const Key<T> mine = keys[u];
    const T distance = distance_of<T>(mine);
    const int64_t end = out.end(u);
    for (int64_t edge = out.begin(u); edge < end; ++edge) {
      const Id v = out.ids[edge];
      const Key<T> offer = key_of(distance + weights[edge]);
      if (offer < keys[v]) {
        keys[v] = offer;
        parents[v] = u;
        heap.push(offer, v);
      } else if (offer == keys[v] && u < parents[v] && mine < offer) {
        parents[v] = u;
      }
      any_flat |= offer == mine && keys[v] == mine && v != u;
    }
  });
  if (any_flat) find_parents<T, Row, Id>(args);
}

}  // namespace

void radix_heap(const Args& args, Context&) {
  with_types(args,
             [&](auto weight, auto row, auto id) { search<decltype(weight), decltype(row), decltype(id)>(args); });
}

}  // namespace tp::sssp
