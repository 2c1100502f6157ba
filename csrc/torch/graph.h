// Shared by the operators on graphs: checks of compressed rows, and their description for the rungs.
#pragma once
#include <ATen/ATen.h>

#include "graph/graph.h"
#include "torch/index.h"

namespace tp {

inline void check_edges(const char* op, const Named& rows, const Named& ids) {
  check_offsets(op, rows, ids);
  check_index_type(op, ids);
  check_vector(op, ids);
}

// Row pointers as rungs take them: int64 if the ids are int64, or if the pointers already are.
inline Tensor rows_beside(const Tensor& row_ptrs, const Tensor& ids) {
  return row_ptrs.to(at::promote_types(row_ptrs.scalar_type(), ids.scalar_type())).contiguous();
}

inline graph::Edges edges_of(const Tensor& row_ptrs, const Tensor& col_idx) {
  return {row_ptrs.const_data_ptr(), col_idx.const_data_ptr()};
}

// Describes a graph without in-edges by pointers into contiguous tensors, which must outlive it.
inline graph::Topology topology_of(const char* op, const Tensor& row_ptrs, const Tensor& col_idx) {
  graph::Topology graph{};
  graph.op = op;
  graph.out = edges_of(row_ptrs, col_idx);
  graph.long_rows = row_ptrs.scalar_type() == at::kLong;
  graph.long_ids = col_idx.scalar_type() == at::kLong;
  graph.vertices = row_ptrs.size(0) - 1;
  graph.edges = col_idx.size(0);
  return graph;
}

}  // namespace tp
