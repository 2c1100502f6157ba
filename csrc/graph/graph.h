// Breadth-first search: the distance of every vertex from the sources in edges, and the parent on a shortest path.
//
// A graph is given by the compressed rows of its adjacency matrix: the edges that leave vertex v are
// col_idx[row_ptrs[v]] to col_idx[row_ptrs[v + 1] - 1]. The edges that enter a vertex are the rows of the transpose; if
// it is not given, `in` is empty. The search goes level by level, and all work within a level is independent. The rungs
// differ in what they visit per level: every vertex or every edge (dense rungs), or only the vertices of the previous
// level, the frontier, which is kept in a queue or a bitmap. They also differ in direction. Top-down, the frontier
// pushes its level along its out-edges; bottom-up, unreached vertices pull along their in-edges, and stop at the first
// neighbour in the frontier. Pushing is faster while the frontier is small, pulling when most neighbours have been
// reached. Several searches of one graph can share the visit of an edge.
//
// Writing a level is idempotent: all threads that write the level of a vertex write the same value. Parents are
// different, since a vertex may have several neighbours one level up. The smallest of them is the parent, so results do
// not depend on timing.
//
// Row pointers and column indices may hold anything. Pointers are clamped to 0..edges. A column index that is not a
// vertex is an error on the host and is skipped on the device.
#pragma once
#include "core/ladder.h"

namespace tp::graph {

struct Edges {
  const void* row_ptrs;  // [vertices + 1]; null if these edges are not given
  const void* col_idx;   // [edges]; likewise
};

// The graph that every graph operator takes.
struct Topology {
  const char* op;            // name of the operator in error messages
  Edges out, in;             // a symmetric graph has the same arrays in both
  bool long_rows, long_ids;  // row_ptrs, and col_idx and parents, are int64, else int32; long_ids implies long_rows
  int64_t vertices, edges;
};

struct Args : Topology {
  int64_t searches;        // 1, unless the rung is `batched`
  const int64_t* sources;  // [searches, num_sources], num_sources >= 1; ids that are not vertices are skipped
  int64_t num_sources;
  int64_t max_level;  // vertices that are farther away are not reached
  int32_t* levels;    // [searches, vertices], -1 where not reached
  void* parents;      // [searches, vertices], -1 where not reached; the parent of a source is itself
};

#define TP_RUNGS "graph/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::graph
