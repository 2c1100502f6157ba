// Single-source shortest paths, also from a set of sources: the distance of each vertex over edges with given lengths,
// and its parent on a shortest path.
//
// The distance of a vertex is the least sum of weights along a path, added up from the source on and rounded after
// each addition. Such sums never decrease along a path, and of two sums the smaller stays the smaller when the same
// weight is added. So edges may be relaxed in any order: when no distance decreases any more, the bits are the same.
//
// An edge is tight if it leads to its target at the target's final distance. The parent of a vertex is the smallest
// vertex nearer to the sources from which a tight edge leads to it. A tight edge is flat if it joins vertices at the
// same distance. A flat edge counts as well if its target is more tight edges away from the sources than its origin;
// this rule prevents cycles of parents.
//
// The bits of a non-negative float, read as an integer, are ordered as the floats are. Rungs that store distances as
// such keys take the minimum of integers.
#pragma once
#include "graph/graph.h"

namespace tp::sssp {

// Every source and every column index is a vertex, and no weight is negative or NaN, which the caller has checked. Row
// pointers on the device may have any values.
struct Args : graph::Topology {
  DType dtype;             // of weights and distances: float32 or float64
  const void* weights;     // [edges]
  const int64_t* sources;  // [num_sources]
  int64_t num_sources;
  void* distances;  // [vertices], infinite if not reached
  void* parents;    // [vertices], -1 if not reached; the parent of a source is itself
};

#define TP_RUNGS "graph/sssp/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

using Weights = Types<float, double>;

}  // namespace tp::sssp
