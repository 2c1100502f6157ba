// What a candidate gets: it looks along its in-edges for the searches that have not reached it.
#pragma once
#include "graph/bits.h"

namespace tp::graph {

struct Piece {
  int64_t begin, end;
};

// A lane's part of the edges that enter a vertex.
template <class In>
TP_HD Piece piece_of(const In& in, int64_t vertex, int lane, int lanes) {
  const int64_t begin = in.begin(vertex), end = in.end(vertex), share = ceil_div(end - begin, int64_t(lanes));
  return {tp::min(end, begin + lane * share), tp::min(end, begin + (lane + 1) * share)};
}

// The searches whose parents a lane looks for.
TP_HD constexpr Mask searches_of(int lane, int bucket) {
  return bucket == 0            ? Mask(0x0101010101010101) << lane
         : bucket == 1          ? Mask(0x0000000100000001) << lane
         : lane < most_searches ? Mask(1) << lane
                                : 0;
}

// In two steps, since nobody knows which lane's edges bring a bit first: every lane gathers the bits of its piece, then
// it looks for some of the searches in the first piece that has them, or in all of them where rows are in no order. The
// block then writes what its vertices got search by search, as those of a queue are often neighbours in memory.
template <class B>
struct PullBits {
  using Id = typename B::Id;
  using Parent = typename B::Parent;
  static constexpr int most_vertices = threads / lanes_of(0);
  static constexpr int ahead = 4;  // loads that a lane has under way: a hub's piece is long
  static constexpr int64_t room = threads * int64_t(sizeof(Mask)) + most_vertices * int64_t(sizeof(Mask) + sizeof(Id)) +
                                  most_searches * most_vertices * int64_t(sizeof(Parent));
  B b;
  Level<Id> from, to;
  int32_t level;

  struct Plan {
    int64_t sizes[buckets], descents;
  };

  template <class Block>
  struct Arrays {
    template <class T>
    using Shared = decltype(std::declval<Block&>().template shared<T>("", 0));
    Shared<Mask> masks;      // of a lane: what its piece has
    Shared<Mask> fresh;      // of a vertex: what it gets
    Shared<Id> vertices;     // at work in the block
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
    const Plan plan = block.uniform("plan", [&] {
      Plan p;
      for (int bucket = 0; bucket < buckets; ++bucket) p.sizes[bucket] = sizes[of_candidates + bucket];
      p.descents = descents[0];
      return p;
    });
    for (int bucket = buckets - 1; bucket >= 0; --bucket) {
      const int lanes = lanes_of(bucket);
      const int64_t size = plan.sizes[bucket] * lanes, stride = block.grid().x * threads;
      for (int64_t first = block.index().x * threads; first < size; first += stride)
        pull(block, bucket, first / lanes, int(tp::min(size - first, int64_t(threads))) / lanes, plan.descents == 0,
             arrays, gathered);
    }
    gathered.store(block);
  }

  // `count` candidates of a bucket from the first on.
  template <class Block>
  TP_HD void pull(Block& block, int bucket, int64_t first, int count, bool ordered, const Arrays<Block>& arrays,
                  Gathered<Block, Id>& gathered) const {
    const auto in = b.g.in(block);
    const auto out = b.g.out(block);
    const auto visit = b.of_vertices(block, "visit", from.visit);
    const auto next = b.of_vertices(block, "next visit", to.visit);
    const auto seen = b.of_vertices(block, "seen", b.seen);
    const auto claims = b.of_vertices(block, "claims", b.claims);
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
      if (t % lanes != lanes - 1) return;  // of a block, a lane that looks for nothing
      for (int i = 0; i < lanes; ++i) {
        const Mask theirs = arrays.masks[which * lanes + i];
        all |= theirs;
      }
      arrays.fresh[which] = all;
      claims[vertex] = 0;
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

  // Calls f(neighbor, mask) for the edges of a piece while it returns true, and maybe f(none, 0).
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

  // The smallest neighbour of a piece for the searches that are `left`; those in `again` have one of another piece.
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
