// Breadth-first search: the distance of every vertex from the sources in edges, and the parent on a shortest path.
//
// A graph is given by the compressed rows of its adjacency matrix: the edges that leave vertex v are
// col_idx[row_ptrs[v]] to col_idx[row_ptrs[v + 1] - 1]. The edges that enter it are the rows of the transpose; if that
// is absent, `in` is empty. The search goes level by level, and all work within a level is independent. The rungs
// differ in what they visit at each level: every vertex or every edge (the dense ones), or only the vertices of the
// last level, the frontier, kept in a queue or a bitmap. They also differ in direction: the frontier pushes its level
// along its out-edges (top-down), or unreached vertices pull along their in-edges and stop at the first neighbour in
// the frontier (bottom-up). Pushing pays while the frontier is small, pulling once most neighbours have been reached.
// Several searches of one graph can share the visit of an edge.
//
// Writing a level is idempotent: all threads that write it write the same value. A parent is not, since a vertex may
// have several neighbours one level up. The smallest of them is the parent, so that results do not depend on timing.
//
// Row pointers and column indices may hold anything. Pointers are clamped to 0..edges. A column index that is not a
// vertex is an error on the host and is skipped on the device.
#pragma once
#include "core/ladder.h"

namespace tp::graph {

struct Edges {
  const void* row_ptrs;  // [vertices + 1]
  const void* col_idx;   // [edges]; null: not given
};

// The graph, as every operator on graphs gets it.
struct Topology {
  const char* op;            // name of the operator in error messages
  Edges out, in;             // a symmetric graph has the same arrays in both
  bool long_rows, long_ids;  // int64 row_ptrs, int64 col_idx and parents, else int32; long ids have long rows
  int64_t vertices, edges;
};

struct Args : Topology {
  int64_t searches;        // 1, unless the rung is `batched`
  const int64_t* sources;  // [searches, num_sources], num_sources >= 1; ids that are not vertices are skipped
  int64_t num_sources;
  int64_t max_level;  // vertices farther away are not reached
  int32_t* levels;    // [searches, vertices], -1 where not reached
  void* parents;      // [searches, vertices], -1 where not reached; the parent of a source is itself
};

#define TP_RUNGS "graph/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::graph
