// torch_patterns::group_reduce, group_expand and group_by: checks, kernels, Meta, derivatives.
//
// Grouping is a stable sort by the index, by as many bits as the number of groups needs; a reduction of groups is then
// a reduction of segments. By default the host needs no sort, nor does CUDA where the result has the same bits in every
// order of the rows (segmented/groups.h); otherwise they are sorted there. Expansion gives every row the value of its
// group; expansion and the sum are each other's derivatives, and the other operators have the derivatives of segments.
//
// If an index is not a group, the CPU raises. CUDA raises only if it is to validate; otherwise reductions leave the row
// out, and expansion gives it 0. Such rows are sorted after all groups.
#include "torch/groups.h"

#include <ATen/ATen.h>

#include "segmented/group_expand.h"
#include "segmented/groups.h"
#include "sort/small_keys.h"
#include "sort/sort.h"
#include "torch/gradient.h"
#include "torch/histogram.h"
#include "torch/index.h"
#include "torch/moments.h"
#include "torch/named_ops.h"
#include "torch/permutation.h"
#include "torch/scan.h"
#include "torch/segmented.h"
#include "torch/segments.h"
#include "torch/sort.h"

namespace tp {
namespace {

constexpr const char *reduce_name = "group_reduce", *expand_name = "group_expand", *by_name = "group_by";

// ---- checks

void check_index(const char* op, const Tensor& index) {
  check_index_type(op, {"index", index});
  check_vector(op, {"index", index});
}

void check_groups(const char* op, const SymInt& groups) {
  TORCH_CHECK_VALUE(TORCH_GUARD_OR_TRUE(groups.sym_ge(0)), op, ": num_groups must not be negative, got ", groups);
}

// Checks the values of the index, on CUDA only if it is to validate.
void check_index_values(const char* op, const Tensor& index, int64_t groups, bool validate) {
  if (index.is_cuda() && !validate) return;
  if (validate) refuse_capture((std::string(op) + ": validate=True").c_str(), index);
  if (index.numel() == 0) return;
  const auto [least, most] = at::aminmax(index);
  if (least.item<int64_t>() < 0 || most.item<int64_t>() >= groups) fail_at_first(op, {"index", index}, groups);
}

// ---- the sort

struct Sorted {
  Tensor rows;     // the values of the rows or, if there are none, their indices before the sort
  Tensor offsets;  // [groups + 1]: where each group begins
};

// Sorts rows by the keys of their groups. On CUDA a search in the sorted keys finds where groups begin: it takes less
// time than counting the keys of very many groups, and does not depend on how rows are distributed over the groups.
Sorted sort_rows(const char* op, const Keys& k, int64_t groups, const Tensor& values, Str algorithm) {
  const auto longs = k.keys.options().dtype(at::kLong);
  const Tensor in = values.defined() ? canonical(values) : values;
  Tensor rows = empty_result(k.keys.sym_sizes(), in.defined() ? in.options() : longs), keys;
  auto args = sort_args(op, k.keys, false, 0, k.bits);
  args.keys = k.keys.const_data_ptr();
  if (k.keys.is_cuda()) {
    keys = at::empty_like(k.keys);
    args.keys_out = keys.mutable_data_ptr();
  }
  give_values(args, in, rows);
  args.rows = 1;
  args.n = rows.numel();
  const bool done = is_done(rows, sort::ladder, op, algorithm);
  if (!done) run(sort::ladder, sort::choose, op, algorithm, k.keys, args);
  if (done || groups == 0) return {rows, at::zeros({groups + 1}, longs)};
  if (keys.defined()) return {rows, at::searchsorted(keys, at::arange(groups + 1, keys.options()))};
  const Tensor counts = Histogram{k.keys, groups, {}, {}, "auto"}.kernel(), offsets = at::zeros({groups + 1}, longs);
  offsets.narrow(0, 1, groups).copy_(Scan{counts, 0, "sum", false, false, "auto"}.kernel());
  return {rows, offsets};
}

// ---- reductions

// What moments.h requires of the rows of groups. The derivatives need not validate again.
struct Groups {
  const GroupReduce& r;

  Tensor reduce(const Tensor& x, Str op) const {
    return call(GroupReduce{x, r.index, r.num_groups, op, false, r.algorithm});
  }
  Tensor expand(const Tensor& x) const { return call(GroupExpand{x, r.index, false, r.algorithm}); }
  Tensor counts(const Tensor& x) const {
    const Tensor ones = at::ones_symint({r.index.sym_size(0)}, x.options().dtype(wide_dtype(x)));
    return beside_rows(reduce(ones, "sum"), x);
  }
  // Among the sorted rows: the product of the rows before times the product of the rows after, in the original order.
  Tensor product_of_others() const {
    const auto [order, offsets] = call(GroupBy{r.index, r.num_groups, false, "auto"});
    const Tensor sorted = r.values.to(wide_dtype(r.values)).index_select(0, order);
    const auto product = [&, offsets = offsets](bool reverse) {
      return call(SegmentScan{sorted, offsets, "prod", /*exclusive=*/true, reverse, false, "auto"});
    };
    const Tensor inverse = call(ArgSort{order, 0, false, 0, {}, at::kLong, "auto"});
    return (product(false) * product(true)).index_select(0, inverse);
  }
};

// The problem without its pointers.
segmented::Groups problem_of(const GroupReduce& r, int64_t groups) {
  segmented::Groups problem{};
  problem.long_index = r.index.scalar_type() == at::kLong;
  problem.groups = groups;
  auto& args = problem.args;
  args.n = r.values.size(0);
  args.width = 1;
  for (const int64_t size : r.values.sizes().slice(1)) args.width *= size;
  args.dtype = combining_dtype(reduce_name, r.op, r.values);
  args.op = op_of(reduce_name, Combines::groups, r.op, r.values);
  return problem;
}

bool can_skip_sort(const GroupReduce& r, const segmented::Groups& problem) {
  Device device;
  device.cuda = r.values.is_cuda();
  return r.algorithm == "auto" && segmented::can_reduce_groups(device, problem);
}

Tensor reduce_unsorted(const GroupReduce& r, segmented::Groups problem, at::ScalarType dtype) {
  const int64_t groups = problem.groups;
  if (r.values.is_cuda()) check_index_values(reduce_name, r.index, groups, r.validate);
  const Tensor in = r.values.contiguous(), index = r.index.contiguous();
  Tensor out = empty_result(with_rows(in, groups), in.options().dtype(dtype));
  problem.index = index.const_data_ptr();
  problem.args.in = in.const_data_ptr();
  problem.args.out = out.mutable_data_ptr();
  bool valid = true;
  with_context(in, [&](TorchContext& context) { valid = segmented::reduce_groups(problem, context); });
  if (!valid) fail_at_first(reduce_name, {"index", index}, groups);
  return out;
}

Tensor reduce_sorted(const GroupReduce& r, int64_t groups) {
  check_index_values(reduce_name, r.index, groups, r.validate);
  const Keys keys(reduce_name, r.index, 0, groups);
  const bool finds_index = r.op == "argmax" || r.op == "argmin", moves_values = r.values.dim() == 1 && !finds_index;
  const auto [rows, offsets] = sort_rows(reduce_name, keys, groups, moves_values ? r.values : Tensor(), "auto");
  const Tensor sorted = moves_values ? rows : r.values.index_select(0, rows);
  const Tensor found = SegmentReduce{sorted, offsets, r.op, false, r.algorithm}.kernel();
  if (!finds_index || rows.numel() == 0) return found;
  const Tensor first = rows.index_select(0, found.clamp_min(0).view({-1})).view(found.sizes());
  return first.masked_fill(found.lt(0), -1);
}

}  // namespace

Keys::Keys(const char* op, const Tensor& x, int64_t first, int64_t count) {
  for (bits = 1; bits < 63 && (int64_t(1) << bits) <= count; ++bits) {
  }
  const auto dtype = bits <= 8 ? at::kByte : bits <= 15 ? at::kShort : bits <= 31 ? at::kInt : at::kLong;
  const Tensor in = x.contiguous();
  keys = empty_result(in.sym_sizes(), in.options().dtype(dtype));
  if (in.numel() == 0) return;
  sort::SmallKeys args{};
  args.in = in.const_data_ptr();
  args.dtype = dtype_of_tensor(op, in);
  args.n = in.numel();
  args.first = first;
  args.count = uint64_t(count);
  args.keys = keys.mutable_data_ptr();
  args.bytes = int(keys.element_size());
  with_context(in, [&](TorchContext& context) { sort::make_small_keys(args, context); });
}

Tensor GroupReduce::kernel() const {
  check_index(reduce_name, index);
  check_groups(reduce_name, num_groups);
  TORCH_CHECK_VALUE(values.dim() > 0, reduce_name, ": values must have a dimension of rows, got a scalar");
  TORCH_CHECK_VALUE(values.sym_size(0).sym_eq(index.sym_size(0)).expect_true(__FILE__, __LINE__), reduce_name,
                    ": values has ", values.sym_size(0), " rows, index ", index.sym_size(0), " elements");
  check_same_device(reduce_name, {{"values", &values}, {"index", &index}});
  const auto dtype = reduced_dtype(reduce_name, values, op);
  check_algorithm(segment_reduce::ladder, reduce_name, algorithm);
  if (values.is_meta()) return empty_result(with_rows(values, num_groups), values.options().dtype(dtype));
  if (is_converted(op, values)) return with_converted(*this, &GroupReduce::values);
  const int64_t groups = num_groups.expect_int();
  const auto problem = problem_of(*this, groups);
  return can_skip_sort(*this, problem) ? reduce_unsorted(*this, problem, dtype) : reduce_sorted(*this, groups);
}

Autocast GroupReduce::autocast() const { return SegmentReduce{values, index, op, false, algorithm}.autocast(); }

Tensor GroupExpand::kernel() const {
  check_index(expand_name, index);
  TORCH_CHECK_VALUE(x.dim() > 0, expand_name, ": x must have a dimension of groups, got a scalar");
  dtype_of_tensor(expand_name, x);
  check_same_device(expand_name, {{"x", &x}, {"index", &index}});
  check_algorithm(segment_reduce::ladder, expand_name, algorithm);
  if (x.is_meta()) return empty_result(with_rows(x, index.sym_size(0)), x.options());
  const int64_t groups = x.size(0);
  check_index_values(expand_name, index, groups, validate);
  if (!index.is_cuda() || validate) return select_rows(x, index);
  const Tensor in = canonical(x), rows = index.contiguous();
  Tensor out = empty_result(with_rows(in, rows.size(0)), in.options());
  segmented::Expanded args{in.const_data_ptr(),   out.mutable_data_ptr(),
                           rows.const_data_ptr(), rows.scalar_type() == at::kLong,
                           rows.size(0),          groups,
                           in.element_size()};
  for (const int64_t size : in.sizes().slice(1)) args.row_bytes *= size;
  with_context(in, [&](TorchContext& context) {  // raises if the library was built without CUDA
#ifdef TP_WITH_CUDA
    segmented::expand_groups(args, context);
#endif
  });
  return out;
}

std::tuple<Tensor, Tensor> GroupBy::kernel() const {
  check_index(by_name, index);
  check_groups(by_name, num_groups);
  check_algorithm(sort::ladder, by_name, algorithm);
  if (index.is_meta()) {
    const auto options = index.options().dtype(at::kLong);
    return {empty_result(index.sym_sizes(), options), empty_result({num_groups + 1}, options)};
  }
  const int64_t groups = num_groups.expect_int();
  check_index_values(by_name, index, groups, validate);
  const auto sorted = sort_rows(by_name, Keys(by_name, index, 0, groups), groups, Tensor(), algorithm);
  return {sorted.rows, sorted.offsets};
}

// ---- derivatives

Tensors GroupReduce::vjp(const Backward& b) const { return reduction_vjp(op, values, Groups{*this}, b.grad()); }

Tensors GroupReduce::jvp(const Forward& f) const { return reduction_jvp(op, values, Groups{*this}, f.tangent()); }

Tensors GroupExpand::vjp(const Backward& b) const {
  return {call(GroupReduce{b.grad(), index, b.sizes(0)[0], "sum", false, algorithm})};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<GroupReduce, GroupExpand, GroupBy>(m); }

}  // namespace tp
