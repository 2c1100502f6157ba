// torch_patterns::run_length_encode, reduce_by_key and unique, composed of comparisons of neighbours,
// compactions, sorts and segmented reductions.
//
// The first element of each run of equal elements is its head. A compaction of the heads gives the values of the runs;
// their positions are where segments begin. The defaults find all of that in one step (compact/runs.h). Distinct values
// are the runs of the sorted values; on CUDA, integers of a small range are counted instead, and need no sort. Two NaN
// are never equal, as in torch. The number of runs depends on the data, so the fake kernels, which return an unbacked
// size, are in Python. Derivatives do not need another such size: they use the number of each element's run, which is a
// scan of the heads.
#include "compact/runs.h"

#include <ATen/ATen.h>

#include <array>

#include "compact/compact.h"
#include "sort/small_keys.h"
#include "sort/sort.h"
#include "torch/checks.h"
#include "torch/compact.h"
#include "torch/groups.h"
#include "torch/histogram.h"
#include "torch/permutation.h"
#include "torch/scan.h"
#include "torch/segmented.h"
#include "torch/segments.h"
#include "torch/sort.h"

namespace tp {
namespace {

using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

constexpr const char *encode_name = "run_length_encode", *by_key_name = "reduce_by_key", *unique_name = "unique";

struct RunLengthEncode {
  static constexpr auto schema =
      "run_length_encode(Tensor x, str algorithm=\"auto\") -> (Tensor values, Tensor counts)";
  static constexpr std::array tags = {at::Tag::dynamic_output_shape};
  Tensor x;
  Str algorithm;

  Two kernel() const;
  Tensors vjp(const Backward& b) const;
  Tensors jvp(const Forward& f) const;
};

struct ReduceByKey {
  static constexpr auto schema =
      "reduce_by_key(Tensor keys, Tensor values, str op=\"sum\", str algorithm=\"auto\") -> (Tensor keys, Tensor "
      "values)";
  static constexpr std::array tags = {at::Tag::dynamic_output_shape};
  Tensor keys, values;
  Str op;
  Str algorithm;

  Two kernel() const;
  Tensors vjp(const Backward& b) const;
  Tensors jvp(const Forward& f) const;
  bool depends(size_t output, size_t input) const { return output == input; }
  Autocast autocast() const { return SegmentReduce{values, keys, op, false, algorithm}.autocast(); }
};

struct Unique {
  static constexpr auto schema =
      "unique(Tensor x, bool return_inverse=False, bool return_counts=False, str algorithm=\"auto\") -> (Tensor "
      "values, "
      "Tensor inverse, Tensor counts)";
  static constexpr std::array tags = {at::Tag::dynamic_output_shape};
  Tensor x;
  bool return_inverse, return_counts;
  Str algorithm;

  Three kernel() const;
};

void check_line(const char* op, const Named& x) {
  dtype_of_tensor(op, x.tensor);
  check_vector(op, x);
}

// Tells which elements of a line begin a run.
Tensor heads_of(const Tensor& x) {
  const SymInt n = x.sym_size(0);
  if (TORCH_GUARD_OR_FALSE(n.sym_eq(0))) return at::zeros_symint({n}, x.options().dtype(at::kBool));
  const Tensor first = at::ones_symint({1}, x.options().dtype(at::kBool));
  return at::cat({first, x.narrow_symint(0, 1, n - 1).ne(x.narrow_symint(0, 0, n - 1))});
}

// The number of each element's run.
Tensor runs_of(const Tensor& heads) { return call(Scan{heads.to(at::kLong), 0, "sum", false, false, "auto"}) - 1; }

// The results wanted for the runs of a line, besides their values; the others stay undefined.
struct Wanted {
  // `offsets`: where each run begins, then the length of the line. `lengths`: the length of each run.
  bool offsets, lengths;
  Tensor order;  // if defined, numbers[order[i]] becomes the run of element i
};
struct Found {
  Tensor values, offsets, lengths, numbers;
};

Found find_runs_on_host(const Tensor& x, const Wanted& wanted) {
  Found found;
  with_context(x, [&](TorchContext& context) {
    const compact::Runs runs(x.const_data_ptr(), x.numel(), dtype_of_tensor(encode_name, x), context);
    const auto longs = x.options().dtype(at::kLong);
    found.values = empty_result({runs.count()}, x.options());
    if (wanted.offsets) found.offsets = empty_result({runs.count() + 1}, longs);
    if (wanted.lengths) found.lengths = empty_result({runs.count()}, longs);
    const auto data = [](const Tensor& t) { return t.defined() ? t.mutable_data_ptr<int64_t>() : nullptr; };
    runs.list(found.values.mutable_data_ptr(), data(found.offsets), data(found.lengths), context);
    if (!wanted.order.defined()) return;
    found.numbers = empty_result({runs.n}, longs);
    runs.number(wanted.order.const_data_ptr<int64_t>(), data(found.numbers), context);
  });
  return found;
}

#ifdef TP_WITH_CUDA
Found find_runs_on_device(const Tensor& x, const Wanted& wanted) {
  const Tensor in = canonical(x);
  const auto longs = x.options().dtype(at::kLong);
  const Tensor values = at::empty(in.sizes(), in.options()), begins = at::empty({in.numel() + 1}, longs);
  const Tensor count = at::empty({}, longs);
  Found found;
  if (wanted.order.defined()) found.numbers = at::empty_like(wanted.order);
  compact::RunArgs args{};
  args.x = in.const_data_ptr();
  args.n = in.numel();
  args.dtype = dtype_of_tensor(encode_name, in);
  args.values = values.mutable_data_ptr();
  args.begins = begins.mutable_data_ptr<int64_t>();
  args.count = count.mutable_data_ptr<int64_t>();
  if (wanted.order.defined()) {
    args.order = wanted.order.const_data_ptr<int64_t>();
    args.numbers = found.numbers.mutable_data_ptr<int64_t>();
  }
  with_context(in, [&](TorchContext& context) { compact::list_runs(args, context); });
  const int64_t runs = count.item<int64_t>();
  // A result has memory that is at most twice as long.
  found.values = values.narrow(0, 0, runs);
  if (2 * runs < values.size(0)) found.values = found.values.clone();
  if (wanted.offsets) found.offsets = begins.narrow(0, 0, runs + 1);
  if (wanted.lengths) found.lengths = at::sub(begins.narrow(0, 1, runs), begins.narrow(0, 0, runs));
  return found;
}
#endif

Found find_runs(const Tensor& x, const Wanted& wanted, Str algorithm) {
  if (x.is_cpu() && algorithm == "auto") return find_runs_on_host(x.contiguous(), wanted);
#ifdef TP_WITH_CUDA
  // The default rung of compaction finds runs, too.
  const bool in_one_pass = algorithm == "auto" || algorithm == compact::choose({}, Device{true, 1});
  if (x.is_cuda() && in_one_pass && x.numel() > 0) return find_runs_on_device(x, wanted);
#endif
  const int64_t n = x.size(0);
  const Tensor heads = heads_of(x), all = at::arange(n, x.options().dtype(at::kLong));
  const Tensor begins = Compact{all, heads, algorithm}.kernel();
  Found found{Compact{x, heads, algorithm}.kernel(), at::cat({begins, at::full({1}, n, begins.options())}), {}, {}};
  if (wanted.lengths) found.lengths = at::sub(found.offsets.narrow(0, 1, begins.size(0)), begins);
  if (wanted.order.defined()) found.numbers = at::empty_like(wanted.order).scatter_(0, wanted.order, runs_of(heads));
  return found;
}

// Gathers the elements of a line at the heads of runs, or scatters their gradients there.
Tensor to_heads(const Tensor& grad, const Tensor& keys) {
  return grad.defined() ? call(CompactBackward{grad, heads_of(keys.detach()), "auto"}) : grad;
}
Tensor from_heads(const Tensor& tangent, const Tensor& keys, const SymInt& count) {
  if (!tangent.defined()) return tangent;
  const Tensor packed = std::get<0>(call(CompactPadded{tangent, heads_of(keys.detach()), 0, "auto"}));
  return packed.narrow_symint(0, 0, count);
}

}  // namespace

// ---- run_length_encode

Two RunLengthEncode::kernel() const {
  check_line(encode_name, {"x", x});
  refuse_capture(encode_name, x);
  const Found found = find_runs(x, {/*offsets=*/false, /*lengths=*/true, {}}, algorithm);
  return {found.values, found.lengths};
}

Tensors RunLengthEncode::vjp(const Backward& b) const { return {to_heads(b.grad(0), x)}; }

Tensors RunLengthEncode::jvp(const Forward& f) const {
  return {from_heads(f.tangent(), x, f.output(0).sym_size(0)), Tensor()};
}

// ---- reduce_by_key

Two ReduceByKey::kernel() const {
  check_line(by_key_name, {"keys", keys});
  TORCH_CHECK_VALUE(values.dim() > 0 && values.size(0) == keys.size(0), by_key_name,
                    ": values must have a row per key, ", keys.size(0), ", got shape ", values.sizes());
  check_same_device(by_key_name, {{"keys", &keys}, {"values", &values}});
  reduced_dtype(by_key_name, values, op);
  check_algorithm(segment_reduce::ladder, by_key_name, algorithm);
  refuse_capture(by_key_name, keys);
  const Found found = find_runs(keys, {/*offsets=*/true, /*lengths=*/false, {}}, "auto");
  return {found.values, SegmentReduce{values, found.offsets, op, false, algorithm}.kernel()};
}

Tensors ReduceByKey::vjp(const Backward& b) const {
  const Tensor grad_keys = to_heads(b.grad(0), keys);
  if (!b.grad(1).defined()) return {grad_keys, Tensor()};
  const GroupReduce groups{values, runs_of(heads_of(keys.detach())), b.grad(1).sym_size(0), op, false, "auto"};
  const std::vector<std::vector<SymInt>> sizes = {values.sym_sizes().vec()};
  const Tensors grads = {b.grad(1)}, none = {Tensor()};
  return {grad_keys, groups.vjp(Backward(grads, none, {}, sizes, [](size_t) { return true; }))[0]};
}

Tensors ReduceByKey::jvp(const Forward& f) const {
  const SymInt count = f.output(0).sym_size(0);
  const Tensor from_keys = from_heads(f.tangent(0), keys, count);
  if (!f.tangent(1).defined()) return {from_keys, Tensor()};
  const GroupReduce groups{values, runs_of(heads_of(keys.detach())), count, op, false, "auto"};
  return {from_keys, groups.jvp(Forward({values}, {f.tangent(1)}, {f.output(1)}, {}))[0]};
}

// ---- unique

namespace {

constexpr int64_t few = 1 << 16;            // elements that are sorted sooner than their range is known
constexpr uint64_t most_counted = 1 << 18;  // values in a range that is counted

// The least of some integers and by how much the greatest is greater.
struct Range {
  int64_t least;
  uint64_t span;
};

Range range_of(const Tensor& x) {
  const auto [least, greatest] = at::aminmax(x);
  const Tensor both = at::stack({least, greatest}).to(at::kLong).cpu();
  const int64_t* ends = both.const_data_ptr<int64_t>();
  return {ends[0], uint64_t(ends[1]) - uint64_t(ends[0])};
}

// Distinct integers, by counting them.
Three count_values(const Unique& u, const Tensor& line, const Range& range) {
  const int64_t bins = int64_t(range.span) + 1;
  const Keys keys(unique_name, line, range.least, bins);
  const Tensor counts = Histogram{keys.keys, bins, {}, {}, "auto"}.kernel(), exists = counts.gt(0);
  const Tensor values = at::nonzero(exists).view({-1});
  Three result{values.add(range.least).to(u.x.scalar_type()), {}, {}};
  if (u.return_counts) std::get<2>(result) = counts.index_select(0, values);
  if (!u.return_inverse) return result;
  const Tensor numbers = Scan{exists.to(at::kLong), 0, "sum", /*exclusive=*/true, false, "auto"}.kernel();
  Tensor inverse = empty_result(line.sym_sizes(), numbers.options());
  sort::LookUp args{};
  args.keys = keys.keys.const_data_ptr();
  args.bytes = int(keys.keys.element_size());
  args.n = line.numel();
  args.count = bins;
  args.table = numbers.const_data_ptr<int64_t>();
  args.out = inverse.mutable_data_ptr<int64_t>();
  with_context(line, [&](TorchContext& context) { sort::look_up(args, context); });
  std::get<1>(result) = inverse;
  return result;
}

// Distinct values, as runs of the sorted values.
Three sort_values(const Unique& u, const Tensor& line) {
  Tensor sorted, order;
  if (u.return_inverse) {
    std::tie(sorted, order) = Sort{line, 0, false, at::kLong, u.algorithm}.kernel();
  } else {
    sorted = SortKeys{line, 0, false, 0, {}, u.algorithm}.kernel();
  }
  const Found found = find_runs(sorted, {/*offsets=*/false, u.return_counts, order}, "auto");
  return {found.values, found.numbers, found.lengths};
}

Three find_values(const Unique& u) {
  const Tensor line = u.x.reshape({-1});
  if (!line.is_cuda() || line.is_floating_point() || line.numel() < few || u.algorithm != "auto") {
    return sort_values(u, line);
  }
  const Tensor integers = line.scalar_type() == at::kBool ? canonical(line).view(at::kByte) : line;
  const Range range = range_of(integers);
  if (range.span < most_counted) return count_values(u, integers, range);
  if (line.element_size() < 8 || range.span >= std::numeric_limits<int32_t>::max()) return sort_values(u, line);
  Three result = sort_values(u, Keys(unique_name, line, range.least, int64_t(range.span) + 1).keys);
  std::get<0>(result) = std::get<0>(result).to(at::kLong).add(range.least);
  return result;
}

}  // namespace

Three Unique::kernel() const {
  dtype_of_tensor(unique_name, x);
  refuse_capture(unique_name, x);
  const auto [values, inverse, counts] = find_values(*this);
  const auto none = [&] { return at::empty({0}, x.options().dtype(at::kLong)); };
  return {values, return_inverse ? inverse.view(x.sizes()) : none(), return_counts ? counts : none()};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<RunLengthEncode, ReduceByKey, Unique>(m); }

}  // namespace tp
