// The state that the whole grid of the persistent search shares: the graph, the queue, the bitmaps, the counters of a
// phase, and the barrier that ends it.
//
// Each phase adds what it finds to a tally of its own. Three tallies are used in turn: while one is being written, a
// late block may still read the one before, and the one after is being cleared.
#pragma once
#include "block/warp.cuh"
#include "core/op.h"
#include "graph/edges.h"

namespace tp::graph::resident {

constexpr int threads = 1024, warps = threads / block::warp_size;
constexpr int piece = 256;  // a vertex with more edges is queued as several pieces

// What a phase finds: vertices, the edges that leave them, and the pieces that they take in the queue.
struct Tally {
  unsigned long long vertices, edges, pieces;
};

// What one lane found in a phase.
struct Found {
  unsigned long long vertices = 0, edges = 0;
};

// The result of the phase in which one cluster runs alone.
struct Solo {
  int64_t level, edges;  // the next level to find; edges that leave all levels found in this phase except the last one
};

struct Control {
  unsigned arrived;
  Tally tallies[3];
  Solo solo;
};

// When to change the method. A small frontier goes to one cluster. A frontier is pulled if the number of its out-edges,
// times alpha, exceeds the number of edges of the unreached vertices; otherwise it is pushed.
struct Policy {
  int64_t alpha;
  int solo_pieces, solo_edges;  // upper limits
};

// One search. In the visited bitmap, bit v is set if vertex v belongs to an earlier level. A vertex that a push reaches
// gets its bit only when it is expanded itself, so during a push the bits tell about earlier levels only.
template <class Row_, class Id_>
struct Problem {
  using Row = Row_;
  using Id = Id_;
  using Vertex = typename std::make_unsigned<Id>::type;
  using Word =
      typename std::conditional<sizeof(Id) == 8, unsigned long long, unsigned>::type;  // the type that atomics take
  static constexpr Word no_parent = ~Word(0);

  Adjacency<const Row*, const Id*> out, in;  // `in` is null if pulling is not possible
  int64_t vertices, num_sources, max_level;
  const int64_t* sources;
  int* levels;
  Word* parents;
  unsigned *visited, *front, *next;  // bitmaps, padded to whole tasks
  Word* queue_vertices;              // the queue: the vertex of each piece, its first edge, and its number of edges
  Row* queue_begins;
  unsigned* queue_lengths;
  int64_t capacity;
  Control* control;
  Policy policy;

  TP_DEVICE bool pulls() const { return in.rows != nullptr; }
  // The vertex that an edge leads to, or `vertices` if its index is not a vertex.
  TP_DEVICE Vertex neighbor(const Id* ids, int64_t edge) const {
    const Vertex v = Vertex(ids[edge]);
    return v < Vertex(vertices) ? v : Vertex(vertices);
  }
};

TP_DEVICE inline int lane_id() { return int(threadIdx.x) % block::warp_size; }
TP_DEVICE inline int warp_id() { return int(threadIdx.x) / block::warp_size; }
TP_DEVICE inline int64_t grid_warp() { return int64_t(blockIdx.x) * warps + warp_id(); }
TP_DEVICE inline int64_t grid_warps() { return int64_t(gridDim.x) * warps; }

template <class T>
TP_DEVICE T warp_sum(T v) {
#pragma unroll
  for (int stride = block::warp_size / 2; stride > 0; stride /= 2) v += __shfl_xor_sync(~0u, v, stride);
  return v;
}

// The phases of a block, each with its own tally.
class Phases {
 public:
  TP_DEVICE explicit Phases(Control* control) : control_(control) {
    if (threadIdx.x == 0) totals() = {};
    __syncthreads();
  }
  TP_DEVICE Tally& tally() const { return control_->tallies[phase_ % 3]; }
  // Grid barrier: ends the phase in all blocks, makes what they wrote visible to all, and returns the sum of what all
  // lanes found. The counter of arrivals only grows, and may wrap around.
  TP_DEVICE Tally end(Found found = {}) {
    const unsigned long long vertices = warp_sum(found.vertices), edges = warp_sum(found.edges);
    if (lane_id() == 0 && (vertices | edges) != 0) {
      atomicAdd(&totals().vertices, vertices);
      atomicAdd(&totals().edges, edges);
    }
    __syncthreads();
    Tally& mine = tally();
    expected_ += gridDim.x;
    if (threadIdx.x == 0) {
      if (totals().vertices != 0) atomicAdd(&mine.vertices, totals().vertices);
      if (totals().edges != 0) atomicAdd(&mine.edges, totals().edges);
      totals() = {};
      if (blockIdx.x == 0) control_->tallies[(phase_ + 1) % 3] = {};
      __threadfence();
      atomicAdd(&control_->arrived, 1u);
      unsigned now = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(&control_->arrived) : "memory");
      } while (int(now - expected_) < 0);
      __threadfence();
    }
    __syncthreads();
    ++phase_;
    return {__ldcg(&mine.vertices), __ldcg(&mine.edges), __ldcg(&mine.pieces)};
  }

 private:
  TP_DEVICE static Tally& totals() {
    __shared__ Tally totals;
    return totals;
  }
  Control* control_;
  unsigned expected_ = 0;
  int phase_ = 0;
};

}  // namespace tp::graph::resident
