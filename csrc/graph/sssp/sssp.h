// Single-source shortest paths, or from a set of sources: how far each vertex is by edges of given lengths, and the
// parent on a shortest path.
//
// The distance of a vertex is the least sum of weights along a path, added up from the source on and rounded after
// each addition. Such sums never decrease along a path, and of two sums the smaller stays the smaller when the same
// weight is added. So edges may be relaxed in any order: when no distance decreases any more, the bits are the same.
//
// An edge is tight if the distance of its target is reached through it. The parent of a vertex is the smallest vertex
// nearer by from which a tight edge leads to it. A tight edge that is flat, which joins vertices at one distance,
// counts as well if its target is more tight edges away from the sources than its origin, so that parents never form a
// circle.
//
// The bits of a float that is not negative, read as an integer, are ordered as the floats are. The rungs that keep
// distances as such keys take the minimum of integers.
#pragma once
#include "graph/graph.h"

namespace tp::sssp {

// Every source and every column index is a vertex, and no weight is negative or NaN: the caller has checked. Row
// pointers may hold anything on the device.
struct Args : graph::Topology {
  DType dtype;             // of weights and distances: float32 or float64
  const void* weights;     // [edges]
  const int64_t* sources;  // [num_sources]
  int64_t num_sources;
  void* distances;  // [vertices], infinite where not reached
  void* parents;    // [vertices], -1 where not reached; the parent of a source is itself
};

#define TP_RUNGS "graph/sssp/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

using Weights = Types<float, double>;

}  // namespace tp::sssp
