// How a rung reads a graph: it clamps every row pointer, and checks every neighbour before it is used.
#pragma once
#include "graph/graph.h"

namespace tp::graph {

constexpr int32_t unreached = -1;

// Calls f(Row{}, Id{}) with the types of the row pointers and of the column indices.
template <class F>
void with_types(const Topology& graph, F f) {
  if (graph.long_ids) return f(int64_t(), int64_t());
  if (graph.long_rows) return f(int64_t(), int32_t());
  f(int32_t(), int32_t());
}

// Whether the column index of an edge is a vertex. If not, the host raises an error and the device skips the edge.
TP_HD inline bool is_vertex(int64_t id, const Topology& graph, int64_t edge) {
  if (uint64_t(id) < uint64_t(graph.vertices)) return true;
#ifndef __CUDA_ARCH__
  fail(ErrorKind::index, graph.op, ": col_idx[", edge, "] is ", id, ", which is out of range: expected 0 to ",
       graph.vertices - 1);
#endif
  return false;
}

// The edges of one direction, in arrays bound to a block or in plain memory.
template <class Rows, class Ids>
struct Adjacency {
  Rows rows;
  Ids ids;
  int64_t edges;

  TP_HD int64_t pointer(int64_t i) const {
    const int64_t p = rows[i];
    return tp::max(int64_t(0), tp::min(p, edges));
  }
  TP_HD int64_t begin(int64_t vertex) const { return pointer(vertex); }
  TP_HD int64_t end(int64_t vertex) const { return tp::max(pointer(vertex), pointer(vertex + 1)); }
  TP_HD int64_t degree(int64_t vertex) const { return end(vertex) - begin(vertex); }
  TP_HD int64_t operator[](int64_t edge) const {
    const int64_t id = ids[edge];
    return id;
  }
};

template <class Row, class Id>
Adjacency<const Row*, const Id*> adjacency(const Edges& edges, const Topology& graph) {
  return {static_cast<const Row*>(edges.row_ptrs), static_cast<const Id*>(edges.col_idx), graph.edges};
}

// As adjacency, but bound to a block; the names are for the checks of simt.h.
template <class Row, class Id, class Block>
TP_HD auto bind(Block& block, const Topology& graph, const Edges& edges, const char* rows_name, const char* ids_name) {
  const auto rows = block.global(rows_name, static_cast<const Row*>(edges.row_ptrs), graph.vertices + 1);
  const auto ids = block.global(ids_name, static_cast<const Id*>(edges.col_idx), graph.edges);
  return Adjacency<std::decay_t<decltype(rows)>, std::decay_t<decltype(ids)>>{rows, ids, graph.edges};
}

}  // namespace tp::graph
