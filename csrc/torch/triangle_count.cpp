// torch_patterns::triangle_count: checks, kernels, Meta. A count has no derivative.
#include "graph/triangle_count/triangle_count.h"

#include "torch/graph.h"

namespace tp {
namespace {

constexpr const char* op_name = "triangle_count";
Pattern pattern(op_name, triangle_count::ladder);

struct TriangleCount {
  static constexpr auto schema = "triangle_count(Tensor row_ptrs, Tensor col_idx, str algorithm=\"auto\") -> Tensor";
  Tensor row_ptrs, col_idx;
  Str algorithm;

  Tensor kernel() const;
};

Tensor TriangleCount::kernel() const {
  check_edges(op_name, {"row_ptrs", row_ptrs}, {"col_idx", col_idx});
  check_offset_values(op_name, {"row_ptrs", row_ptrs}, col_idx.sym_size(0), false);
  Tensor count = empty_result({}, col_idx.options().dtype(at::kLong));
  if (is_done(count, triangle_count::ladder, op_name, algorithm)) return count;
  const Tensor ids = col_idx.contiguous(), rows = rows_beside(row_ptrs, ids);
  triangle_count::Args args{topology_of(op_name, rows, ids)};
  args.count = count.mutable_data_ptr<int64_t>();
  run(triangle_count::ladder, triangle_count::choose, op_name, algorithm, ids, args);
  return count;
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<TriangleCount>(m); }

}  // namespace
}  // namespace tp
