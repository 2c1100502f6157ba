// torch_patterns::bfs_csr and bfs_batched: checks, kernels, Meta. Levels and parents are integers, so there are no
// derivatives.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "torch/graph.h"
#include "torch/sort.h"

namespace tp {
namespace {

using Results = std::tuple<Tensor, Tensor>;

constexpr const char *single_name = "bfs_csr", *batched_name = "bfs_batched";
Pattern pattern("bfs", graph::ladder);

struct Search {
  Tensor row_ptrs, col_idx, sources, in_row_ptrs, in_col_idx;
  bool symmetric;
  SymInt max_level;
  bool validate;
  Str algorithm;
};

#define TP_SCHEMA                                                                                                 \
  "(Tensor row_ptrs, Tensor col_idx, Tensor sources, Tensor? in_row_ptrs=None, Tensor? in_col_idx=None, bool "    \
  "symmetric=False, SymInt max_level=-1, bool validate=False, str algorithm=\"auto\") -> (Tensor levels, Tensor " \
  "parents)"
struct Bfs : Search {
  static constexpr auto schema = "bfs_csr" TP_SCHEMA;
  Results kernel() const;
};

struct BfsBatched : Search {
  static constexpr auto schema = "bfs_batched" TP_SCHEMA;
  Results kernel() const;
};
#undef TP_SCHEMA

// ---- checks of shapes, dtypes and devices, on every device

void check_in_edges(const char* op, const Search& s) {
  TORCH_CHECK_VALUE(s.in_row_ptrs.defined() == s.in_col_idx.defined(), op,
                    ": in_row_ptrs and in_col_idx must be given together");
  if (!s.in_row_ptrs.defined()) return;
  TORCH_CHECK_VALUE(!s.symmetric, op, ": symmetric=True means that the in-edges are the out-edges; give none");
  check_edges(op, {"in_row_ptrs", s.in_row_ptrs}, {"in_col_idx", s.in_col_idx});
  check_same_device(op, {{"col_idx", &s.col_idx}, {"in_col_idx", &s.in_col_idx}});
  TORCH_CHECK_VALUE(s.in_row_ptrs.sym_sizes() == s.row_ptrs.sym_sizes(), op, ": in_row_ptrs has shape ",
                    s.in_row_ptrs.sym_sizes(), ", row_ptrs ", s.row_ptrs.sym_sizes());
  TORCH_CHECK_VALUE(s.in_col_idx.sym_sizes() == s.col_idx.sym_sizes(), op, ": in_col_idx has shape ",
                    s.in_col_idx.sym_sizes(), ", col_idx ", s.col_idx.sym_sizes());
  TORCH_CHECK_TYPE(s.in_col_idx.scalar_type() == s.col_idx.scalar_type(), op, ": in_col_idx is ",
                   s.in_col_idx.scalar_type(), ", col_idx ", s.col_idx.scalar_type());
}

void check_search(const char* op, const Search& s) {
  check_edges(op, {"row_ptrs", s.row_ptrs}, {"col_idx", s.col_idx});
  check_in_edges(op, s);
  TORCH_CHECK_TYPE(at::isIntegralType(s.sources.scalar_type(), false), op, ": sources must be integers, got ",
                   s.sources.scalar_type());
  check_same_device(op, {{"col_idx", &s.col_idx}, {"sources", &s.sources}});
  TORCH_CHECK_VALUE(TORCH_GUARD_OR_TRUE(s.max_level.sym_ge(-1)), op, ": max_level must be -1 (any) or more, got ",
                    s.max_level);
}

// ---- checks of values

void check_vertices(const char* op, const Named& ids, int64_t vertices) {
  const Tensor flat = ids.tensor.reshape(-1).to(at::kLong).contiguous();
  bool wrong = false;
  if (flat.is_cpu()) {  // for a few sources, tensor operators would take as long as a search
    const auto* const id = flat.const_data_ptr<int64_t>();
    wrong = std::any_of(id, id + flat.numel(), [&](int64_t i) { return i < 0 || i >= vertices; });
  } else {
    wrong = at::logical_or(flat.lt(0), flat.ge(vertices)).any().item<bool>();
  }
  if (wrong) fail_at_first(op, {ids.name, flat}, vertices);
}

// The row of every edge, and so the vertex at which it begins. The pointers must be valid.
Tensor row_of_edges(const Tensor& row_ptrs) { return at::repeat_interleave(row_ptrs.to(at::kLong).diff()); }

// Checks that the in-edges are the reversed out-edges, with the same multiplicities.
void check_transpose(const char* name, const Search& s) {
  const int64_t vertices = s.row_ptrs.size(0) - 1;
  const Tensor from = row_of_edges(s.row_ptrs), to = s.col_idx.to(at::kLong);
  const Tensor in_to = s.symmetric ? from : row_of_edges(s.in_row_ptrs);
  const Tensor in_from = s.symmetric ? to : s.in_col_idx.to(at::kLong);
  const auto sorted = [](const Tensor& keys) { return call(SortKeys{keys, 0, false, 0, {}, "auto"}); };
  const Tensor edges = sorted(from * vertices + to), in_edges = sorted(in_from * vertices + in_to);
  if (at::equal(edges, in_edges)) return;
  const Tensor first = edges.ne(in_edges).to(at::kByte).argmax();
  const int64_t ours = edges[first].item<int64_t>(), theirs = in_edges[first].item<int64_t>();
  const int64_t edge = std::min(ours, theirs);  // the smaller edge is missing on the other side
  TORCH_CHECK_VALUE(false, name, ": ",
                    s.symmetric ? "symmetric=True, but" : "in_row_ptrs and in_col_idx do not fit:", " the edge from ",
                    edge / vertices, " to ", edge % vertices, " stands ",
                    ours < theirs ? "only among the out-edges" : "only among the in-edges");
}

// Checks that read data. The CPU always checks pointers and sources here, and targets of edges where they are used;
// CUDA checks all of them, but only with `validate`.
void check_values(const char* op, const Search& s) {
  const int64_t edges = s.col_idx.size(0), vertices = s.row_ptrs.size(0) - 1;
  if (s.validate) refuse_capture((std::string(op) + ": validate=True").c_str(), s.col_idx);
  check_offset_values(op, {"row_ptrs", s.row_ptrs}, edges, s.validate);
  if (s.in_row_ptrs.defined()) check_offset_values(op, {"in_row_ptrs", s.in_row_ptrs}, edges, s.validate);
  if (s.validate || s.sources.is_cpu()) check_vertices(op, {"sources", s.sources}, vertices);
  if (!s.validate) return;
  check_vertices(op, {"col_idx", s.col_idx}, vertices);
  if (s.in_col_idx.defined()) check_vertices(op, {"in_col_idx", s.in_col_idx}, vertices);
  if (s.symmetric || s.in_col_idx.defined()) check_transpose(op, s);
}

// ---- kernels, the same for CPU and CUDA

// Runs args.searches searches: by one call if the rung takes batches, else one after another. During stream capture,
// searches run one by one, because a batch would read back from the device.
void run_searches(const char* op, graph::Args args, Str algorithm, const Tensor& ids) {
  const int64_t searches = args.searches;
  bool batched = false;
  translate_errors([&] {
    const bool cuda = ids.is_cuda();
    if (is_capturing(ids)) args.searches = 1;
    if (algorithm == "auto") algorithm = graph::choose(args, {cuda, at::get_num_threads()});
    batched = find(graph::ladder, op, algorithm, cuda).traits.has(tp::batched);
  });
  const int64_t id_bytes = args.long_ids ? 8 : 4;
  args.searches = batched ? searches : 1;
  for (int64_t i = 0; i < searches; i += args.searches) {
    run(graph::ladder, graph::choose, op, algorithm, ids, args);
    args.sources += args.searches * args.num_sources;
    args.levels += args.searches * args.vertices;
    args.parents = static_cast<char*>(args.parents) + args.searches * args.vertices * id_bytes;
  }
}

// Runs `searches` searches, each from an equal share of the sources.
Results search(const char* op, const Search& s, const SymInt& searches, const Sizes& shape) {
  Tensor levels = empty_result(shape, s.col_idx.options().dtype(at::kInt));
  Tensor parents = empty_result(shape, s.col_idx.options());
  if (levels.is_meta()) {
    check_algorithm(graph::ladder, op, s.algorithm);
    return {levels, parents};
  }
  check_values(op, s);
  // Make everything contiguous and of the dtypes that the kernels take; row pointers are int64 if either they or the
  // ids are.
  const Tensor ids = s.col_idx.contiguous(), in_ids = s.in_col_idx.defined() ? s.in_col_idx.contiguous() : Tensor();
  const Tensor rows = rows_beside(s.row_ptrs, ids);
  const Tensor in_rows = s.in_row_ptrs.defined() ? s.in_row_ptrs.to(rows.scalar_type()).contiguous() : Tensor();
  const Tensor sources = s.sources.to(at::kLong).contiguous();

  // Describe the graph and the results.
  graph::Args args{topology_of(op, rows, ids)};
  if (s.symmetric) args.in = args.out;
  if (in_rows.defined()) args.in = edges_of(in_rows, in_ids);
  const int64_t max_level = s.max_level.expect_int();
  constexpr int64_t highest = std::numeric_limits<int32_t>::max();  // the greatest level that the results can hold
  args.max_level = max_level < 0 ? highest : std::min(max_level, highest);
  args.searches = searches.expect_int();
  args.num_sources = args.searches > 0 ? sources.numel() / args.searches : 0;
  args.sources = sources.const_data_ptr<int64_t>();
  args.levels = levels.mutable_data_ptr<int32_t>();
  args.parents = parents.mutable_data_ptr();
  run_searches(op, args, s.algorithm, ids);
  return {levels, parents};
}

Results Bfs::kernel() const {
  check_search(single_name, *this);
  TORCH_CHECK_VALUE(sources.dim() <= 1, single_name, ": sources must be a scalar or have one dimension, got shape ",
                    sources.sym_sizes());
  TORCH_CHECK_VALUE(TORCH_GUARD_OR_TRUE(sources.sym_numel().sym_gt(0)), single_name,
                    ": sources is empty; a search needs one source at least");
  return search(single_name, *this, 1, {row_ptrs.sym_size(0) - 1});
}

Results BfsBatched::kernel() const {
  check_search(batched_name, *this);
  check_vector(batched_name, {"sources", sources});
  return search(batched_name, *this, sources.sym_size(0), {sources.sym_size(0), row_ptrs.sym_size(0) - 1});
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<Bfs, BfsBatched>(m); }

}  // namespace
}  // namespace tp
