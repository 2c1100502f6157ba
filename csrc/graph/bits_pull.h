// The pull of bit_parallel: a candidate looks along its in-edges for the searches that have not reached it.
#pragma once
#include "graph/bits.h"

namespace tp::graph {

struct Piece {
  int64_t begin, end;
};

// A lane's share of the edges that enter a vertex.
template <class In>
TP_HD Piece piece_of(const In& in, int64_t vertex, int lane, int lanes) {
  const int64_t begin = in.begin(vertex), end = in.end(vertex), share = ceil_div(end - begin, int64_t(lanes));
  return {tp::min(end, begin + lane * share), tp::min(end, begin + (lane + 1) * share)};
}

// The searches for which a lane looks for parents.
TP_HD constexpr Mask searches_of(int lane, int bucket) {
  return bucket == 0            ? Mask(0x0101010101010101) << lane
         : bucket == 1          ? Mask(0x0000000100000001) << lane
         : lane < most_searches ? Mask(1) << lane
                                : 0;
}

// A pull takes two steps, because no lane knows in advance which lane's edges are the first to have a bit. First, every
// lane gathers the bits of its own piece of the row. Then each lane takes some of the searches, and looks for their
// parents in the first piece that has their bits, or in all such pieces if rows are not sorted. Finally, the block
// writes the results search by search, because the vertices of a queue are often neighbours in memory.
template <class B>
struct PullBits {
  using Id = typename B::Id;
  using Parent = typename B::Parent;
  static constexpr int most_vertices = threads / lanes_of(0);
  static constexpr int ahead = 4;  // loads in flight per lane: the pieces of a vertex with many edges are long
  static constexpr int64_t shared_bytes = threads * int64_t(sizeof(Mask)) +
                                          most_vertices * int64_t(sizeof(Mask) + sizeof(Id)) +
                                          most_searches * most_vertices * int64_t(sizeof(Parent));
  B b;
  Level<Id> from, to;
  int32_t level;

  struct Counts {
    int64_t sizes[buckets], descents;
  };

  template <class Block>
  struct Arrays {
    template <class T>
    using Shared = decltype(std::declval<Block&>().template shared<T>("", 0));
    Shared<Mask> masks;      // per lane: the bits that its piece has
    Shared<Mask> fresh;      // per vertex: the bits that it lacked and now gets
    Shared<Id> vertices;     // the vertices that the block works on
    Shared<Parent> parents;  // [searches, vertices]
  };

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto sizes = to.bind_sizes(block);
    const auto descents = block.global("descents", b.descents, 1);
    const Arrays<Block> arrays{block.template shared<Mask>("masks", threads),
                               block.template shared<Mask>("fresh", most_vertices),
                               block.template shared<Id>("vertices", most_vertices),
                               block.template shared<Parent>("parents", most_searches * most_vertices)};
    Gathered<Block, Id> gathered(block, b.queue(block, "next frontier", to.frontier), b.vertices(), sizes, of_frontier);
    const Counts counts = block.uniform("counts", [&] {
      Counts p;
      for (int bucket = 0; bucket < buckets; ++bucket) p.sizes[bucket] = sizes[of_candidates + bucket];
      p.descents = descents[0];
      return p;
    });
    for (int bucket = buckets - 1; bucket >= 0; --bucket) {
      const int lanes = lanes_of(bucket);
      const int64_t size = counts.sizes[bucket] * lanes, stride = block.grid().x * threads;
      for (int64_t first = block.index().x * threads; first < size; first += stride)
        pull(block, bucket, first / lanes, int(tp::min(size - first, int64_t(threads))) / lanes, counts.descents == 0,
             arrays, gathered);
    }
    gathered.store(block);
  }

  // Pulls for candidates first to first + count - 1 of a bucket.
  template <class Block>
  TP_HD void pull(Block& block, int bucket, int64_t first, int count, bool ordered, const Arrays<Block>& arrays,
                  Gathered<Block, Id>& gathered) const {
    const auto in = b.g.in(block);
    const auto out = b.g.out(block);
    const auto visit = b.of_vertices(block, "visit", from.visit);
    const auto next = b.of_vertices(block, "next visit", to.visit);
    const auto seen = b.of_vertices(block, "seen", b.seen);
    const auto queued = b.of_vertices(block, "queued", b.queued);
    const auto candidates = b.queue(block, "candidates", b.candidates);
    const auto levels = b.levels(block);
    const auto parents = b.parents(block);
    const int lanes = lanes_of(bucket), most = threads / lanes;
    auto open = block.template per_lane<Mask>("open");
    block.phase("gather", [&](int t) {
      if (t / lanes >= count) return;
      const Id vertex = candidates[bucket * b.vertices() + first + t / lanes];
      const Mask theirs = seen[vertex];
      open[t] = ~theirs & b.all();
      arrays.masks[t] = gather(in, visit, piece_of(in, vertex, t % lanes, lanes), open[t]);
      if (t % lanes == 0) arrays.vertices[t / lanes] = vertex;
    });
    block.phase("find", [&](int t) {
      const int which = t / lanes;
      if (which >= count) return;
      const Id vertex = arrays.vertices[which];
      Mask left = open[t] & searches_of(t % lanes, bucket), all = 0;
      for (int i = 0; i < lanes && left != 0; ++i) {
        const Mask theirs = arrays.masks[which * lanes + i];
        if ((theirs & left) != 0)
          find(in, visit, piece_of(in, vertex, i, lanes), theirs & left, all, ordered, arrays.parents, which, most);
        all |= theirs;
        if (ordered) left &= ~theirs;
      }
      // One lane per vertex updates its masks. In a block-wide group, this lane has no searches to look for.
      if (t % lanes != lanes - 1) return;
      for (int i = 0; i < lanes; ++i) {
        const Mask theirs = arrays.masks[which * lanes + i];
        all |= theirs;
      }
      arrays.fresh[which] = all;
      queued[vertex] = 0;
      if (all == 0) return;
      seen[vertex] = b.all() & ~(open[t] & ~all);
      next[vertex] = all;
      gathered.add(t, vertex, out.degree(vertex));
    });
    block.phase("write", [&](int t) {
      const int which = t % most;
      if (which >= count) return;
      const Mask mine = arrays.fresh[which];
      const Id vertex = arrays.vertices[which];
      for (int search = t / most; search < b.g.args.searches; search += lanes) {
        if ((mine >> search & 1) == 0) continue;
        const Parent parent = arrays.parents[search * most + which];
        levels[search * b.vertices() + vertex] = level;
        parents[search * b.vertices() + vertex] = parent;
      }
    });
  }

  // Calls f(neighbor, mask) for the edges of a piece until it returns false. f may also be called as f(0, 0) at the
  // end.
  template <class In, class Visit, class F>
  TP_HD void for_each_mask(const In& in, const Visit& visit, Piece piece, F f) const {
    for (int64_t edge = piece.begin; edge < piece.end; edge += ahead) {
      int64_t neighbors[ahead];
      Mask masks[ahead];
      for (int k = 0; k < ahead; ++k) neighbors[k] = edge + k < piece.end ? in[edge + k] : int64_t(0);
      for (int k = 0; k < ahead; ++k) {
        masks[k] = 0;
        if (edge + k < piece.end && is_vertex(neighbors[k], b.g.args, edge + k)) masks[k] = visit[neighbors[k]];
      }
      bool more = true;
      for (int k = 0; k < ahead; ++k) more = more && f(neighbors[k], masks[k]);
      if (!more) return;
    }
  }

  template <class In, class Visit>
  TP_HD Mask gather(const In& in, const Visit& visit, Piece piece, Mask open) const {
    Mask found = 0;
    if (open == 0) return found;
    for_each_mask(in, visit, piece, [&](int64_t, Mask mask) {
      found |= mask & open;
      return found != open;
    });
    return found;
  }

  // For the searches in `left`, sets the parent to the smallest neighbour in the piece that has the search's bit.
  // Searches in `again` already have a parent from an earlier piece, which is only lowered.
  template <class In, class Visit, class Parents>
  TP_HD void find(const In& in, const Visit& visit, Piece piece, Mask left, Mask again, bool ordered,
                  const Parents& parents, int which, int most) const {
    for_each_mask(in, visit, piece, [&](int64_t neighbor, Mask mask) {
      for (Mask hits = mask & left; hits != 0; hits &= hits - 1) {
        const int search = lowest_bit(hits);
        if ((again >> search & 1) != 0) {
          const Parent before = parents[search * most + which];
          if (before <= Parent(neighbor)) continue;
        }
        parents[search * most + which] = Parent(neighbor);
      }
      again |= mask & left;
      if (ordered) left &= ~mask;
      return left != 0;
    });
  }
};

}  // namespace tp::graph
