// torch_patterns_parts::bfs_level: one level of a search in one part of a distributed graph, for
// torch_patterns.distributed.bfs.
#include "graph/part/part.h"
#include "torch/graph.h"

namespace tp {
namespace {

constexpr const char* op_name = "bfs_level";
constexpr int64_t words_of_sums = 4;  // two int64

void bfs_level(const Tensor& row_ptrs, const Tensor& col_idx, const Tensor& in_row_ptrs, const Tensor& in_col_idx,
               const Tensor& frontier, int64_t frontier_size, int64_t begin, int64_t level, bool pull,
               const Tensor& levels, const Tensor& parents, const Tensor& found) {
  using graph::part::word;
  const int64_t count = levels.numel(), vertices = row_ptrs.numel() - 1;
  check_edges(op_name, {"row_ptrs", row_ptrs}, {"col_idx", col_idx});
  check_edges(op_name, {"in_row_ptrs", in_row_ptrs}, {"in_col_idx", in_col_idx});
  check_same_device(op_name, {{"col_idx", &col_idx}, {"the frontier", &frontier}, {"levels", &levels}});
  check_same_device(op_name, {{"col_idx", &col_idx}, {"parents", &parents}, {"found", &found}});
  TORCH_CHECK_VALUE(in_row_ptrs.numel() == row_ptrs.numel(), op_name, ": in_row_ptrs has ", in_row_ptrs.numel(),
                    " elements, row_ptrs ", row_ptrs.numel());
  TORCH_CHECK_VALUE(in_col_idx.numel() == col_idx.numel(), op_name, ": in_col_idx has ", in_col_idx.numel(),
                    " elements, col_idx ", col_idx.numel());
  TORCH_CHECK_TYPE(in_col_idx.scalar_type() == col_idx.scalar_type() && parents.scalar_type() == col_idx.scalar_type(),
                   op_name, ": in_col_idx and parents must be ", col_idx.scalar_type(), " as col_idx is");
  TORCH_CHECK_TYPE(
      frontier.scalar_type() == at::kInt && levels.scalar_type() == at::kInt && found.scalar_type() == at::kInt,
      op_name, ": frontier, levels and found must be int32");
  for (const Tensor* x : {&frontier, &levels, &parents, &found})
    TORCH_CHECK_VALUE(x->dim() == 1 && x->is_contiguous(), op_name, ": bitmaps and results must be contiguous vectors");
  TORCH_CHECK_VALUE(begin >= 0 && begin + count <= vertices && parents.numel() == count, op_name, ": ", count,
                    " levels and ", parents.numel(), " parents from vertex ", begin, " on do not fit ", vertices,
                    " vertices");
  TORCH_CHECK_VALUE(frontier.numel() * word >= vertices && (found.numel() - words_of_sums) * word >= count, op_name,
                    ": a bitmap is too short");
  check_offset_values(op_name, {"row_ptrs", row_ptrs}, col_idx.numel(), false);
  check_offset_values(op_name, {"in_row_ptrs", in_row_ptrs}, col_idx.numel(), false);

  const Tensor ids = col_idx.contiguous(), in_ids = in_col_idx.contiguous();
  const bool wide = row_ptrs.scalar_type() == at::kLong || in_row_ptrs.scalar_type() == at::kLong;
  const auto rows_of = [&](const Tensor& ptrs) {
    return ptrs.to(wide || ids.scalar_type() == at::kLong ? at::kLong : at::kInt).contiguous();
  };
  const Tensor rows = rows_of(row_ptrs), in_rows = rows_of(in_row_ptrs);
  graph::part::Args args{topology_of(op_name, rows, ids)};
  args.in = edges_of(in_rows, in_ids);
  args.begin = begin;
  args.count = count;
  args.frontier = static_cast<const uint32_t*>(frontier.const_data_ptr());
  args.frontier_size = frontier_size;
  args.level = int32_t(level);
  args.pull = pull;
  args.levels = levels.mutable_data_ptr<int32_t>();
  args.parents = parents.mutable_data_ptr();
  args.sums = static_cast<int64_t*>(found.mutable_data_ptr());
  args.found = static_cast<uint32_t*>(found.mutable_data_ptr()) + words_of_sums;
  with_context(ids, [&](TorchContext& context) { graph::part::search(args, context); });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_patterns_parts, m) {
  m.def(
      "bfs_level(Tensor row_ptrs, Tensor col_idx, Tensor in_row_ptrs, Tensor in_col_idx, Tensor frontier, int "
      "frontier_size, int begin, int level, bool pull, Tensor(a!) levels, Tensor(b!) parents, Tensor(c!) found) -> ()");
}
TORCH_LIBRARY_IMPL(torch_patterns_parts, CPU, m) { m.impl(op_name, &bfs_level); }
TORCH_LIBRARY_IMPL(torch_patterns_parts, CUDA, m) { m.impl(op_name, &bfs_level); }

}  // namespace tp
