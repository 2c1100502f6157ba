// Breadth-first search: how many edges away every vertex is, and over which neighbour.
//
// A graph is the compressed rows of its adjacency matrix: the edges that leave vertex v are col_idx[row_ptrs[v]] to
// col_idx[row_ptrs[v + 1] - 1]. The edges that enter it are the same of the transpose; where that is absent, `in` holds
// nothing. The search goes level by level, and within a level everything is independent. The rungs differ in whom they
// ask: every vertex or every edge whether it has something to do (the dense ones), or only those of the last level, the
// frontier, kept in a queue or a bitmap; and in which way: the frontier pushes its level along its out-edges, or what
// is not reached yet pulls along its in-edges and stops at the first neighbour found. Pushing pays while the frontier
// is small, pulling once most of what an edge leads to is reached. Many searches of one graph may look at each edge
// together.
//
// Levels are idempotent: whoever writes one writes the same value. A parent is not, since a vertex may have several
// neighbours one level up: the one with the smallest number is taken, so that results do not depend on who was first.
//
// Row pointers and column indices may hold anything. Pointers are clamped to 0..edges; an edge to a vertex that is none
// is an error on the host and is no edge on the device.
#pragma once
#include "core/ladder.h"

namespace tp::graph {

struct Edges {
  const void* row_ptrs;  // [vertices + 1]
  const void* col_idx;   // [edges]; null: these are not given
};

struct Args {
  const char* op;            // what errors call the operator
  Edges out, in;             // symmetric: the same twice
  bool long_rows, long_ids;  // int64 row_ptrs, int64 col_idx and parents, else int32; long ids have long rows
  int64_t vertices, edges;
  int64_t searches;        // 1, unless the rung is `batched`
  const int64_t* sources;  // [searches, num_sources], at least one; what is no vertex is skipped
  int64_t num_sources;
  int64_t max_level;  // no vertex further away is reached
  int32_t* levels;    // [searches, vertices], -1 where not reached
  void* parents;      // [searches, vertices], -1 where not reached; a source is its own
};

#define TP_RUNGS "graph/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::graph
