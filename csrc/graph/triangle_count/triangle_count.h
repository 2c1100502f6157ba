// Counts triangles: sets of three vertices of a symmetric graph, each pair of which is joined by an edge.
//
// The vertices are ordered by degree, and those of equal degree by id. Of every edge only the direction towards the
// later vertex is kept, so each triangle is found once, from its first vertex, and no vertex keeps more than sqrt(2 E)
// neighbours, whatever its degree (Schank and Wagner, Finding, counting and listing all triangles in large graphs,
// 2005). For every edge that is kept, the later neighbours that its two ends share are counted. The counts are
// integers, so their sum does not depend on the order.
//
// Multiple edges count once, and self loops do not count. Rows may be in any order. Row pointers and column indices may
// have any values: pointers are clamped, and a column index that is not a vertex is an error on the host and is skipped
// on the device.
#pragma once
#include "graph/graph.h"

namespace tp::triangle_count {

struct Args : graph::Topology {
  int64_t* count;  // [1]
};

#define TP_RUNGS "graph/triangle_count/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

// Whether vertex u comes before vertex v.
template <class Edges>
TP_HD bool comes_before(int64_t u, int64_t v, const Edges& edges) {
  const int64_t mine = edges.degree(u), theirs = edges.degree(v);
  return mine < theirs || (mine == theirs && u < v);
}

}  // namespace tp::triangle_count
