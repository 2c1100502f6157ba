// One level of a breadth-first search over one part of a graph. The part is `count` neighbouring vertices from `begin`
// on. The caller gives all in-edges of these vertices, and of all vertices the out-edges that lead to them.
//
// The caller, who combines all parts, passes the frontier of the whole graph as a bitmap, and gets the new vertices of
// this part as a bitmap. A level is pushed along the out-edges of the frontier, or pulled along the in-edges of
// unreached vertices.
#pragma once
#include "core/context.h"
#include "graph/graph.h"

namespace tp::graph::part {

constexpr int word = 32;  // vertices in a word of a bitmap

struct Args : Topology {
  int64_t begin, count;
  const uint32_t* frontier;  // [words of vertices]
  int64_t frontier_size;     // an upper bound for the number of vertices in it
  int32_t level;             // the level to be found; that of the frontier is one less
  bool pull;
  int32_t* levels;  // [count], -1 where not reached
  void* parents;    // [count], -1 where not reached; becomes the smallest vertex of the frontier with an edge to it
  uint32_t* found;  // [words of count]; every word is written
  int64_t* sums;    // [2]: the number of vertices found, and the number of edges that enter them
};

void search(const Args& args, Context& context);

}  // namespace tp::graph::part
