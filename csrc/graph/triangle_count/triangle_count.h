// The number of triangles: sets of three vertices of a symmetric graph that are joined each to each.
//
// The vertices are ordered by degree, those of one degree by id, and of every edge the direction is kept that leads to
// the later vertex. So each triangle is found once, from its first vertex, and no vertex keeps more than sqrt(2 E)
// neighbours, however many it has (Schank and Wagner, Finding, counting and listing all triangles in large graphs,
// 2005). For every edge that is kept, the later neighbours that its ends share are counted: integers, so that every
// order gives the same number.
//
// Multiple edges count once and self loops not at all. Rows may be in any order. Row pointers and column indices may
// hold anything: pointers are clamped, and a column index that is not a vertex is an error on the host and is skipped
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
