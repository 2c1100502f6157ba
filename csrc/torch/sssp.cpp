// torch_patterns::sssp: checks, kernels, Meta, derivatives.
//
// A distance is the sum of the weights on the path of parents. So the tangent of a distance is the sum of the tangents
// on that path, and the gradient of a weight is the sum of the gradients of all vertices whose path uses its edge. Both
// are computed by pointer jumping, which doubles the length of the steps in each round: a vertex adds the sum of its
// parent, then that of its grandparent, and so on.
#include "graph/sssp/sssp.h"

#include <charconv>

#include "torch/gradient.h"
#include "torch/graph.h"
#include "torch/groups.h"
#include "torch/segmented.h"

namespace tp {
namespace {

using Results = std::tuple<Tensor, Tensor>;

constexpr const char* op_name = "sssp";
Pattern pattern(op_name, sssp::ladder);

struct Sssp {
  static constexpr auto schema =
      "sssp(Tensor row_ptrs, Tensor col_idx, Tensor weights, Tensor sources, str algorithm=\"auto\") -> (Tensor "
      "distances, Tensor parents)";
  Tensor row_ptrs, col_idx, weights, sources;
  Str algorithm;

  TP_DIFFERENTIABLE(Results);
  bool keeps(size_t input) const { return input <= 2; }
  bool keeps_output(size_t) const { return true; }

  SymInt vertices() const { return row_ptrs.sym_size(0) - 1; }
  SymInt edges() const { return col_idx.sym_size(0); }
};

// ---- checks

at::ScalarType distance_dtype(const Tensor& weights) {
  return weights.is_floating_point() ? wide_dtype(weights) : at::kDouble;
}

// Prints a number as Python does.
std::string text_of(const at::Scalar& number) {
  if (!number.isFloatingPoint()) return std::to_string(number.toLong());
  const double x = number.toDouble();
  char text[32];
  std::string found = x != x ? "nan" : std::string(text, std::to_chars(text, std::end(text), x).ptr);
  return found.find_first_not_of("-0123456789") == std::string::npos ? found + ".0" : found;
}

// Checks sources, weights and column indices on any device, by one synchronization.
void check_values(const Sssp& s) {
  const int64_t vertices = s.row_ptrs.size(0) - 1;
  check_offset_values(op_name, {"row_ptrs", s.row_ptrs}, s.col_idx.size(0), false);
  const auto inside = [&](const Tensor& ids) {
    const auto [least, most] = at::aminmax(ids);
    return at::logical_and(least.ge(0), most.lt(vertices));
  };
  Tensors fine = {inside(s.sources)};
  if (s.col_idx.size(0) > 0) fine.insert(fine.end(), {s.weights.min().ge(0), inside(s.col_idx)});  // the least is NaN
  const Tensor passed = at::stack(fine).cpu();                                                     // if any is
  const bool* const ok = passed.const_data_ptr<bool>();
  const auto first = [](const Tensor& wrong) { return wrong.reshape({-1}).to(at::kByte).argmax().item<int64_t>(); };
  const auto first_outside = [&](const Tensor& ids) { return first(at::logical_or(ids.lt(0), ids.ge(vertices))); };
  if (!ok[0]) {
    const int64_t i = first_outside(s.sources);
    TORCH_CHECK_INDEX(false, op_name, ": sources[", i, "]: ", s.sources.reshape({-1})[i].item<int64_t>(),
                      " is no vertex of a graph of ", vertices);
  }
  if (fine.size() == 1) return;
  if (!ok[1]) {
    const int64_t i = first(s.weights.ge(0).logical_not());
    TORCH_CHECK_VALUE(false, op_name, ": weights[", i, "] is ", text_of(s.weights[i].item()),
                      "; weights must not be negative");
  }
  if (!ok[2]) {
    const int64_t i = first_outside(s.col_idx);
    TORCH_CHECK_INDEX(false, op_name, ": col_idx[", i, "] is ", s.col_idx[i].item<int64_t>(), ", not in 0 ... ",
                      vertices - 1);
  }
}

// ---- kernels

Results Sssp::kernel() const {
  check_edges(op_name, {"row_ptrs", row_ptrs}, {"col_idx", col_idx});
  TORCH_CHECK_TYPE(weights.scalar_type() != at::kBool, op_name, ": weights must be real numbers, got Bool");
  dtype_of_tensor(op_name, weights);
  TORCH_CHECK_TYPE(at::isIntegralType(sources.scalar_type(), false), op_name, ": sources must be integers, got ",
                   sources.scalar_type());
  check_same_device(op_name, {{"col_idx", &col_idx}, {"weights", &weights}, {"sources", &sources}});
  TORCH_CHECK_VALUE(weights.dim() == 1 && TORCH_GUARD_OR_TRUE(weights.sym_size(0).sym_eq(edges())), op_name,
                    ": weights must be [", edges(), "], one per edge, got ", weights.sym_sizes());
  TORCH_CHECK_VALUE(sources.dim() <= 1, op_name, ": sources must be a scalar or have one dimension, got shape ",
                    sources.sym_sizes());
  TORCH_CHECK_VALUE(TORCH_GUARD_OR_TRUE(sources.sym_numel().sym_gt(0)), op_name, ": there are no sources");
  Tensor distances = empty_result({vertices()}, weights.options().dtype(distance_dtype(weights)));
  Tensor parents = empty_result({vertices()}, col_idx.options());
  if (distances.is_meta()) {
    check_algorithm(sssp::ladder, op_name, algorithm);
    return {distances, parents};
  }
  refuse_capture((std::string("sssp: algorithm '") + std::string(algorithm) + "'").c_str(), col_idx);
  check_values(*this);
  const Tensor ids = col_idx.contiguous(), rows = rows_beside(row_ptrs, ids), from = sources.to(at::kLong).contiguous();
  const Tensor lengths = weights.to(distances.scalar_type()).contiguous();
  sssp::Args args{topology_of(op_name, rows, ids)};
  args.dtype = dtype_of_tensor(op_name, lengths);
  args.weights = lengths.const_data_ptr();
  args.sources = from.const_data_ptr<int64_t>();
  args.num_sources = from.numel();
  args.distances = distances.mutable_data_ptr();
  args.parents = parents.mutable_data_ptr();
  run(sssp::ladder, sssp::choose, op_name, algorithm, ids, args);
  return {distances, parents};
}

// ---- derivatives

// 0, 1, ..., n - 1.
Tensor numbers(const SymInt& n, const Tensor& like) {
  return at::arange(c10::Scalar(n), like.options().dtype(at::kLong));
}

// For each vertex, the edge from its parent, the first of equal ones; edges() for sources and vertices that are not
// reached.
Tensor edges_to(const Sssp& s, const Tensor& distances, const Tensor& parents) {
  const Tensor vertices = numbers(s.vertices(), s.col_idx), to = s.col_idx.to(at::kLong), known = distances.detach();
  const Tensor from = call(SegmentExpand{vertices, s.row_ptrs, s.edges(), false, "auto"});
  const Tensor offers = known.index_select(0, from) + s.weights.detach().to(known.scalar_type());
  const Tensor tight = at::logical_and(offers.eq(known.index_select(0, to)), from.ne(to));
  const Tensor leads = at::logical_and(tight, parents.index_select(0, to).eq(from));
  const Tensor none = at::full_symint({s.vertices() + 1}, c10::Scalar(s.edges()), to.options());
  return none
      .scatter_reduce(0, to.masked_fill(leads.logical_not(), c10::Scalar(s.vertices())), numbers(s.edges(), to), "amin")
      .narrow_symint(0, 0, s.vertices());
}

// The vertices 1, 2, 4, ... steps towards the source, until nothing changes or, if tensors have no data, for the
// greatest possible length of a path.
Tensors jumps_of(const Sssp& s, const Tensor& parents) {
  const bool plain = is_plain({parents, s.row_ptrs});
  const int64_t longest = s.vertices().maybe_as_int().value_or(int64_t(1) << 32) - 1;
  Tensors jumps;
  Tensor jump = at::where(parents.lt(0), numbers(s.vertices(), parents), parents.to(at::kLong));
  for (int64_t steps = 1; steps < longest; steps *= 2) {
    jumps.push_back(jump);
    jump = jump.index_select(0, jump);
    if (plain && at::equal(jump, jumps.back())) break;
  }
  return jumps;
}

Tensors Sssp::vjp(const Backward& b) const {
  const Tensors jumps = jumps_of(*this, b.output(1));
  Tensor sums = b.grad(0);
  for (auto jump = jumps.rbegin(); jump != jumps.rend(); ++jump) {
    sums = sums + call(GroupReduce{sums, *jump, vertices(), "sum", false, "auto"});
  }
  const Tensor grads = at::zeros_symint({edges() + 1}, sums.options());
  return {Tensor(), Tensor(),
          grads.scatter(0, edges_to(*this, b.output(0), b.output(1)), sums)
              .narrow_symint(0, 0, edges())
              .to(weights.scalar_type()),
          Tensor()};
}

Tensors Sssp::jvp(const Forward& f) const {
  const Tensor tangent = f.tangent(2).to(distance_dtype(weights));
  Tensor sums =
      at::cat({tangent, at::zeros({1}, tangent.options())}).index_select(0, edges_to(*this, f.output(0), f.output(1)));
  for (const Tensor& jump : jumps_of(*this, f.output(1))) sums = sums + sums.index_select(0, jump);
  return {sums, Tensor()};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<Sssp>(m); }

}  // namespace
}  // namespace tp
