// One level of a breadth-first search of a part of a graph: the levels of `count` neighbouring vertices, from `begin`
// on, of which all in-edges are given, and of all other vertices the out-edges that lead to them.
//
// Who holds the other parts knows the frontier of all, a bit per vertex, and gets a bit per vertex of this part in
// turn. A level is pushed along the out-edges of the frontier, or pulled along the in-edges of what is not reached.
#pragma once
#include "core/context.h"
#include "graph/graph.h"

namespace tp::graph::part {

constexpr int word = 32;  // vertices in a word of a bitmap

struct Args : Topology {
  int64_t begin, count;
  const uint32_t* frontier;  // [words of vertices]
  int64_t frontier_size;     // no more vertices than these are in it
  int32_t level;             // of the vertices to be found; those of the frontier are one below
  bool pull;
  int32_t* levels;  // [count], -1 where not reached
  void* parents;    // [count], -1 where not reached: becomes the least vertex of the frontier that leads there
  uint32_t* found;  // [words of count], all of which are written
  int64_t* sums;    // [2]: how many vertices were found, and how many edges enter them
};

void search(const Args& args, Context& context);

}  // namespace tp::graph::part
