// The queue of the persistent search. It holds pieces of rows of at most 256 edges. Levels are appended one after
// another, so every vertex enters once and nothing has to be cleared. A warp collects vertices in shared memory, and
// appends many at a time.
#pragma once
#include "graph/resident/state.cuh"

namespace tp::graph::resident {

constexpr int gathered = 256, at_once = 128;  // how many vertices a warp can collect, and how many one step may add

TP_DEVICE inline int64_t pieces_of(int64_t length) { return tp::max((length + piece - 1) / piece, int64_t(1)); }

// Stores piece i of a vertex whose first piece has index `at`; a vertex without edges has one empty piece.
template <class P>
TP_DEVICE void store_piece(const P& p, int64_t at, int64_t i, typename P::Vertex vertex, typename P::Row begin,
                           int64_t length) {
  if (at + i >= p.capacity) return;  // overlapping rows may make more pieces than the queue holds
  p.queue_vertices[at + i] = vertex;
  p.queue_begins[at + i] = begin + typename P::Row(i * piece);
  p.queue_lengths[at + i] = unsigned(tp::min(length - i * piece, int64_t(piece)));
}

// Stores the pieces of each lane's vertex, if the lane has one. If a vertex has several pieces, the whole warp stores
// them.
template <class P>
TP_DEVICE void store_pieces(const P& p, bool has, int64_t at, typename P::Vertex vertex, typename P::Row begin,
                            typename P::Row length) {
  if (has) store_piece(p, at, 0, vertex, begin, int64_t(length));
  for (unsigned rest = __ballot_sync(~0u, has && length > typename P::Row(piece)); rest != 0; rest &= rest - 1) {
    const int owner = __ffs(int(rest)) - 1;
    const int64_t first = block::broadcast(at, owner), long_length = int64_t(block::broadcast(length, owner));
    const typename P::Vertex long_vertex = block::broadcast(vertex, owner);
    const typename P::Row long_begin = block::broadcast(begin, owner);
    for (int64_t i = 1 + lane_id(); i * piece < long_length; i += block::warp_size)
      store_piece(p, first, i, long_vertex, long_begin, long_length);
  }
}

// Appends the `count` vertices that a warp has collected, after index `base`. Returns the number of edges that leave
// the vertices of this lane.
template <class P>
__noinline__ TP_DEVICE unsigned long long append(const P& p, const typename P::Word* gathered_vertices, int count,
                                                 int64_t base, Tally& tally) {
  using Row = typename P::Row;
  using Vertex = typename P::Vertex;
  constexpr int items = 4;
  unsigned long long edges = 0;
  // Read the rows of this lane's vertices, and count the pieces that they take.
  for (int first = lane_id(); first - lane_id() < count; first += items * block::warp_size) {
    Row begins[items], lengths[items];
    int64_t pieces = 0;
#pragma unroll
    for (int k = 0; k < items; ++k) {
      const int i = first + k * block::warp_size;
      const int64_t vertex = i < count ? int64_t(gathered_vertices[i]) : 0;
      begins[k] = i < count ? Row(p.out.begin(vertex)) : Row(0);
      lengths[k] = i < count ? Row(p.out.end(vertex)) - begins[k] : Row(0);
      pieces += i < count ? pieces_of(int64_t(lengths[k])) : 0;
      edges += lengths[k];
    }
    // Reserve room for the pieces of the warp, by one atomic.
    const int64_t upto = block::inclusive_scan<Sum<int64_t>>(pieces);
    unsigned long long before = 0;
    if (lane_id() == block::warp_size - 1) before = atomicAdd(&tally.pieces, static_cast<unsigned long long>(upto));
    int64_t at = base + int64_t(block::broadcast(before, block::warp_size - 1)) + upto - pieces;
// Store the pieces.
#pragma unroll
    for (int k = 0; k < items; ++k) {
      const int i = first + k * block::warp_size;
      store_pieces(p, i < count, at, i < count ? Vertex(gathered_vertices[i]) : Vertex(0), begins[k], lengths[k]);
      if (i < count) at += pieces_of(int64_t(lengths[k]));
    }
  }
  return edges;
}

// Collects the vertices that a warp finds, and appends them to the queue.
template <class P>
class Appender {
 public:
  using Vertex = typename P::Vertex;
  static constexpr int64_t storage_bytes = warps * gathered * int64_t(sizeof(typename P::Word));

  // `storage` is shared memory; pieces are appended from index `base` on.
  TP_DEVICE Appender(const P& p, char* storage, int64_t base, Tally& tally)
      : p_(p), mine_(reinterpret_cast<typename P::Word*>(storage) + warp_id() * gathered), base_(base), tally_(tally) {}

  // Adds a vertex for each lane whose `wins` is set. Call make_room() whenever up to `at_once` vertices may have been
  // added.
  TP_DEVICE void add(bool wins, Vertex vertex) {
    const unsigned winners = __ballot_sync(~0u, wins);
    if (wins) mine_[count_ + __popc(winners & ((1u << lane_id()) - 1))] = vertex;
    count_ += __popc(winners);
  }
  TP_DEVICE void make_room() {
    if (count_ > gathered - at_once) flush();
  }
  // Returns this lane's counts of everything that was appended.
  TP_DEVICE Found finish() {
    flush();
    return found_;
  }

 private:
  TP_DEVICE void flush() {
    if (count_ == 0) return;
    __syncwarp();
    found_.edges += append(p_, mine_, count_, base_, tally_);
    if (lane_id() == 0) found_.vertices += unsigned(count_);
    count_ = 0;
    __syncwarp();
  }

  const P& p_;
  typename P::Word* mine_;
  int64_t base_;
  Tally& tally_;
  int count_ = 0;  // the same in all lanes
  Found found_;
};

// Distributes the edges of up to 32 pieces, one piece per lane, evenly over the lanes of a warp. visit(from, to) gets
// `items` edges per lane at once, so that their loads are in flight together; where there is no edge, `to` is the
// number of vertices.
template <int items, class P, class Visit>
TP_DEVICE void expand(const P& p, typename P::Vertex vertex, typename P::Row begin, unsigned length, Visit visit) {
  using Vertex = typename P::Vertex;
  const unsigned upto = block::inclusive_scan<Sum<unsigned>>(length);
  const unsigned total = __shfl_sync(~0u, upto, block::warp_size - 1);
  const typename P::Row shifted =
      begin - typename P::Row(upto - length);  // shifted + j is edge j of the warp, if this lane's piece holds it
  for (unsigned first = 0; first < total; first += items * block::warp_size) {
    Vertex from[items], to[items];
#pragma unroll
    for (int k = 0; k < items; ++k) {
      const unsigned j = first + unsigned(k * block::warp_size + lane_id());
      int owner = 0;  // the number of lanes whose pieces end at or before j
#pragma unroll
      for (int step = block::warp_size / 2; step > 0; step /= 2) {
        if (__shfl_sync(~0u, upto, owner + step - 1) <= j) owner += step;
      }
      from[k] = __shfl_sync(~0u, vertex, owner);
      const typename P::Row edge = __shfl_sync(~0u, shifted, owner) + typename P::Row(j);
      to[k] = j < total ? p.neighbor(p.out.ids, edge) : Vertex(p.vertices);
    }
    visit(from, to);
  }
}

}  // namespace tp::graph::resident
