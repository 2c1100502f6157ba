// The queue of the persistent search: pieces of at most 256 edges, appended level after level, so that every vertex
// enters once and nothing is cleared. A warp gathers vertices in shared memory and appends many at once.
#pragma once
#include "graph/resident/state.cuh"

namespace tp::graph::resident {

constexpr int gathered = 256, at_once = 128;  // vertices that a warp has room for, and that one step may add

template <class P>
TP_DEVICE void store_pieces(const P& p, int64_t at, typename P::Vertex vertex, typename P::Row begin, int64_t length) {
  do {                      // one even if it is empty
    if (at < p.capacity) {  // rows that overlap may make more
      p.queue_vertices[at] = vertex;
      p.queue_begins[at] = begin;
      p.queue_lengths[at] = unsigned(tp::min(length, int64_t(piece)));
    }
    ++at;
    begin += typename P::Row(piece);
    length -= piece;
  } while (length > 0);
}

TP_DEVICE inline int64_t pieces_of(int64_t length) { return tp::max((length + piece - 1) / piece, int64_t(1)); }

template <class P>
class Appender {
 public:
  using Vertex = typename P::Vertex;
  unsigned long long vertices = 0, edges = 0;  // appended by this lane

  // `room` is shared memory for `gathered` vertices of each warp; appends from place `base` on.
  TP_DEVICE Appender(const P& p, typename P::Word* room, int64_t base, Tally& tally)
      : p_(p), mine_(room + warp_id() * gathered), base_(base), tally_(tally) {}

  // Of all lanes, those that `wins` give a vertex. Flush before more than `at_once` may come.
  TP_DEVICE void add(bool wins, Vertex vertex) {
    const unsigned winners = __ballot_sync(~0u, wins);
    if (wins) mine_[count_ + __popc(winners & ((1u << lane_id()) - 1))] = vertex;
    count_ += __popc(winners);
  }
  TP_DEVICE void make_room() {
    if (count_ > gathered - at_once) flush();
  }
  TP_DEVICE void flush() {
    for (int first = 0; first < count_; first += at_once) flush_from(first);
    count_ = 0;
    __syncwarp();
  }

 private:
  TP_DEVICE void flush_from(int first) {
    using Row = typename P::Row;
    constexpr int items = at_once / block::warp_size;
    Row begins[items], lengths[items];
    int64_t pieces = 0;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < items; ++k) {
      const int i = first + k * block::warp_size + lane_id();
      if (i >= count_) continue;
      const int64_t vertex = int64_t(mine_[i]);
      begins[k] = Row(p_.out.begin(vertex));
      lengths[k] = Row(p_.out.end(vertex)) - begins[k];
      pieces += pieces_of(lengths[k]);
      edges += lengths[k];
      ++vertices;
    }
    const int64_t upto = block::inclusive_scan<Sum<int64_t>>(pieces);
    unsigned long long before = 0;
    if (lane_id() == block::warp_size - 1) before = atomicAdd(&tally_.pieces, static_cast<unsigned long long>(upto));
    int64_t at = base_ + int64_t(block::broadcast(before, block::warp_size - 1)) + upto - pieces;
#pragma unroll
    for (int k = 0; k < items; ++k) {
      const int i = first + k * block::warp_size + lane_id();
      if (i >= count_) continue;
      store_pieces(p_, at, Vertex(mine_[i]), begins[k], int64_t(lengths[k]));
      at += pieces_of(lengths[k]);
    }
  }

  const P& p_;
  typename P::Word* mine_;
  int64_t base_;
  Tally& tally_;
  int count_ = 0;  // the same in all lanes
};

// The edges of up to 32 pieces, one a lane, dealt evenly to the lanes of the warp: visit(from, to) gets `items` edges a
// lane at once, so that their loads are in flight together; `to` is P's number of vertices where there is none.
template <int items, class P, class Visit>
TP_DEVICE void expand(const P& p, typename P::Vertex vertex, typename P::Row begin, unsigned length, Visit visit) {
  using Vertex = typename P::Vertex;
  const unsigned upto = block::inclusive_scan<Sum<unsigned>>(length);
  const unsigned total = __shfl_sync(~0u, upto, block::warp_size - 1);
  const typename P::Row shifted = begin - typename P::Row(upto - length);  // edge j of the warp, if it is mine: + j
  for (unsigned first = 0; first < total; first += items * block::warp_size) {
    Vertex from[items], to[items];
#pragma unroll
    for (int k = 0; k < items; ++k) {
      const unsigned j = first + unsigned(k * block::warp_size + lane_id());
      int owner = 0;  // how many lanes' edges end before j
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
