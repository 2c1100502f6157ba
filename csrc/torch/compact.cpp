// torch_patterns::compact, compact_padded, compact_backward and partition: checks, kernels, Meta, derivatives.
//
// For a given mask all of them are linear, so forward mode applies them to the tangents. compact_backward scatters
// packed rows to the positions where the mask is true; it is the transpose of both compactions. Its own transpose is
// compact_padded, cut to the existing rows. So these three contain their derivatives of every order. A partition
// permutes rows, and the partition of their numbers tells how, so its derivatives are permutations. Only compact waits
// for the device to learn the number of kept rows; its Meta kernel, which returns an unbacked size, is in Python.
#include "torch/compact.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <cstring>

#include "compact/compact.h"
#include "torch/checks.h"
#include "torch/permutation.h"
#include "torch/segments.h"

namespace tp {
namespace {

using compact::Step;

constexpr const char *compact_name = "compact", *padded_name = "compact_padded", *backward_name = "compact_backward",
                     *partition_name = "partition";
Pattern pattern(compact_name, compact::ladder);

void check_mask(const char* op, const char* other_name, const Tensor& other, const Tensor& mask) {
  dtype_of_tensor(op, other);
  TORCH_CHECK_TYPE(mask.scalar_type() == at::kBool, op, ": mask must be bool, got ", mask.scalar_type());
  check_same_device(op, {{other_name, &other}, {"mask", &mask}});
}

void check_pack(const char* op, const Tensor& x, const Tensor& mask) {
  check_mask(op, "x", x, mask);
  const size_t led = size_t(std::min(mask.dim(), x.dim()));
  TORCH_SYM_CHECK(sym_equals(mask.sym_sizes(), x.sym_sizes().slice(0, led)), op,
                  ": mask must have the shape of x or of its leading dimensions, got ", mask.sym_sizes(), " for x ",
                  x.sym_sizes());
}

// `first`, then the sizes of x from `from` on.
Sizes shape_of(Sizes first, SymIntArrayRef sizes, int64_t from) {
  first.insert(first.end(), sizes.begin() + from, sizes.end());
  return first;
}

// ---- kernels: CPU and CUDA alike

// The fill element, repeated to 8 bytes. It is an error if the dtype cannot hold it, except that floats are rounded and
// bool takes its truth value.
uint64_t fill_bits(const at::Scalar& fill, at::ScalarType dtype) {
  uint64_t bits = 0;
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, dtype, padded_name, [&] {
    constexpr bool is_exact = std::is_integral_v<scalar_t> && !std::is_same_v<scalar_t, bool>;
    scalar_t value{};
    bool fits = false;
    try {
      value = fill.to<scalar_t>();
      fits = !is_exact || double(value) == fill.toDouble();
    } catch (const std::exception&) {  // it overflows, which torch says without naming the argument
    }
    TORCH_CHECK(fits, padded_name, ": fill ", fill, " cannot be converted to ", dtype, " without a change");
    for (size_t i = 0; i < 8; i += sizeof value) std::memcpy(reinterpret_cast<char*>(&bits) + i, &value, sizeof value);
  });
  return bits;
}

// For contiguous tensors: rows of the size of those of x, from dimension `from` on.
compact::Args compact_args(Step step, const Tensor& mask, const Tensor& x, int64_t from) {
  compact::Args args{};
  args.step = step;
  args.mask = mask.const_data_ptr();
  args.in = x.const_data_ptr();
  args.n = mask.numel();
  args.row_bytes = c10::multiply_integers(x.sizes().slice(size_t(from))) * x.element_size();
  return args;
}

}  // namespace

Tensor Compact::kernel() const {
  check_pack(compact_name, x, mask);
  refuse_capture((std::string(compact_name) + ": algorithm '" + std::string(algorithm) + "'").c_str(), x);
  const Tensor in = canonical(x), keeps = mask.contiguous(), count = at::empty({}, in.options().dtype(at::kLong));
  compact::Args args = compact_args(Step::count, keeps, in, mask.dim());
  args.count = count.mutable_data_ptr<int64_t>();
  run(compact::ladder, compact::choose, compact_name, algorithm, in, args);
  args.step = Step::pack;
  args.count = nullptr;
  args.packed = count.item<int64_t>();
  Tensor out = empty_result(shape_of({args.packed}, in.sym_sizes(), mask.dim()), in.options());
  args.out = out.mutable_data_ptr();
  if (out.numel() > 0) run(compact::ladder, compact::choose, compact_name, algorithm, in, args);
  return out;
}

std::tuple<Tensor, Tensor> CompactPadded::kernel() const {
  check_pack(padded_name, x, mask);
  Tensor out = empty_result(x.sym_sizes(), x.options()), count = at::empty({}, x.options().dtype(at::kLong));
  const uint64_t filler = fill.isSymbolic() ? 0 : fill_bits(fill, x.scalar_type());
  if (x.is_meta()) {
    check_algorithm(compact::ladder, padded_name, algorithm);
    return {out, count};
  }
  const Tensor in = canonical(x), keeps = mask.contiguous();
  compact::Args args = compact_args(Step::pack, keeps, in, mask.dim());
  args.out = out.mutable_data_ptr();
  args.count = count.mutable_data_ptr<int64_t>();
  args.packed = args.n;
  args.fill = filler;
  run(compact::ladder, compact::choose, padded_name, algorithm, in, args);
  return {out, count};
}

Tensor CompactBackward::kernel() const {
  check_mask(backward_name, "grad", grad, mask);
  TORCH_CHECK_TYPE(grad.is_floating_point(), backward_name, ": grad must be floating point, got ", grad.scalar_type());
  TORCH_CHECK(grad.dim() > 0, backward_name, ": grad must have a dimension of rows, got a scalar");
  Tensor out = empty_result(shape_of(mask.sym_sizes().vec(), grad.sym_sizes(), 1), grad.options());
  if (is_done(out, compact::ladder, backward_name, algorithm)) return out;
  const Tensor in = grad.contiguous(), keeps = mask.contiguous();
  compact::Args args = compact_args(Step::unpack, keeps, in, 1);
  args.out = out.mutable_data_ptr();
  args.packed = in.size(0);
  run(compact::ladder, compact::choose, backward_name, algorithm, in, args);
  return out;
}

std::tuple<Tensor, Tensor> Partition::kernel() const {
  check_mask(partition_name, "x", x, mask);
  TORCH_CHECK_VALUE(mask.dim() == 1 && x.dim() > 0, partition_name,
                    ": mask must have one dimension, x one or more, got ", mask.sym_sizes(), " and ", x.sym_sizes());
  TORCH_SYM_CHECK(x.sym_size(0).sym_eq(mask.sym_size(0)), partition_name, ": mask must have an element per row of x, ",
                  x.sym_size(0), ", got ", mask.sym_sizes());
  Tensor out = empty_result(x.sym_sizes(), x.options()), count = at::empty({}, x.options().dtype(at::kLong));
  if (x.is_meta()) {
    check_algorithm(compact::ladder, partition_name, algorithm);
    return {out, count};
  }
  const Tensor in = canonical(x), keeps = mask.contiguous();
  compact::Args args = compact_args(Step::partition, keeps, in, 1);
  args.out = out.mutable_data_ptr();
  args.count = count.mutable_data_ptr<int64_t>();
  args.packed = args.n;
  run(compact::ladder, compact::choose, partition_name, algorithm, in, args);
  return {out, count};
}

// ---- derivatives

namespace {

// x as rows, one per element of the mask.
Tensor rows_of(const Tensor& x, const Tensor& mask) {
  return x.reshape_symint(shape_of({mask.sym_numel()}, x.sym_sizes(), mask.dim()));
}

// The rows of x that the mask keeps, then zeros: `count` rows in all.
Tensor pack(const Tensor& x, const Tensor& mask, const SymInt& count, Str algorithm) {
  const Tensor rows = rows_of(std::get<0>(call(CompactPadded{x, mask, 0, algorithm})), mask);
  const SymInt most = rows.sym_size(0);
  if (!TORCH_GUARD_OR_FALSE(count.sym_gt(most))) return rows.narrow_symint(0, 0, count);
  return at::cat({rows, at::zeros_symint(shape_of({count - most}, rows.sym_sizes(), 1), rows.options())});
}

// The row of `rows` that each row of their partition was, for each element.
Tensor order_of(const Tensor& mask, const Tensor& rows) {
  const Tensor numbers = at::arange(mask.sym_size(0), mask.options().dtype(at::kLong));
  const Tensor order = std::get<0>(call(Partition{numbers, mask, "auto"}));
  return beside_rows(order, rows).expand_symint(rows.sym_sizes());
}

}  // namespace

Tensors Compact::vjp(const Backward& b) const { return {call(CompactBackward{b.grad(), mask, algorithm})}; }

// compact would return an unbacked size, but here the number of rows is known.
Tensors Compact::jvp(const Forward& f) const { return {pack(f.tangent(), mask, f.output().sym_size(0), algorithm)}; }

Tensors CompactPadded::vjp(const Backward& b) const {
  return {call(CompactBackward{rows_of(b.grad(), mask), mask, algorithm})};
}

Tensors CompactPadded::jvp(const Forward& f) const {
  return {std::get<0>(call(CompactPadded{f.tangent(), mask, 0, algorithm}))};
}

Tensors CompactBackward::vjp(const Backward& b) const { return {pack(b.grad(), mask, b.sizes(0)[0], algorithm)}; }

Tensors Partition::vjp(const Backward& b) const { return {put(b.grad(), order_of(mask, b.grad()), 0)}; }

Tensors Partition::jvp(const Forward& f) const { return {take(f.tangent(), order_of(mask, f.tangent()), 0), Tensor()}; }

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<Compact, CompactPadded, CompactBackward, Partition>(m); }

}  // namespace tp
