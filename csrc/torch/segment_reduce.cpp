// torch_patterns::segment_reduce and torch_patterns::segment_expand: checks, kernels, Meta, derivatives.
//
// Expansion is the transpose of the sum and vice versa, so derivatives of every order exist; torch/moments.h has the
// derivatives of all reductions.
#include "torch/gradient.h"
#include "torch/moments.h"
#include "torch/named_ops.h"
#include "torch/segmented.h"
#include "torch/segments.h"

namespace tp {
namespace {

using segmented::Step;

constexpr const char *reduce_name = "segment_reduce", *expand_name = "segment_expand";
Pattern pattern(reduce_name, segment_reduce::ladder);

// What moments.h requires of the rows of segments. The derivatives need not validate again.
struct Segments {
  const SegmentReduce& r;
  SymInt n;

  Tensor reduce(const Tensor& x, Str op) const { return call(SegmentReduce{x, r.offsets, op, false, r.algorithm}); }
  Tensor expand(const Tensor& x) const { return call(SegmentExpand{x, r.offsets, n, false, r.algorithm}); }
  Tensor counts(const Tensor& x) const {
    const SymInt segments = r.offsets.sym_size(0) - 1;
    const Tensor o = at::clamp(r.offsets, 0, c10::Scalar(n));
    const Tensor lengths = at::sub(o.narrow_symint(0, 1, segments), o.narrow_symint(0, 0, segments)).clamp_min(0);
    return beside_rows(lengths.to(wide_dtype(x)), x);
  }
  // The product of the rows before times the product of the rows after.
  Tensor product_of_others() const {
    const Tensor wide = r.values.to(wide_dtype(r.values));
    const auto product = [&](bool reverse) {
      return call(SegmentScan{wide, r.offsets, "prod", /*exclusive=*/true, reverse, false, "auto"});
    };
    return product(false) * product(true);
  }
};

}  // namespace

at::ScalarType reduced_dtype(const char* pattern, const Tensor& values, Str name) {
  const OpId op = op_of(pattern, Combines::groups, name, values);
  dtype_of_tensor(pattern, values);
  TORCH_CHECK_TYPE(!needs_floats(op) || values.is_floating_point(), pattern, ": op '", std::string(name),
                   "' needs floating point, got values of ", values.scalar_type());
  return combined_dtype(name, op, values);
}

Tensor SegmentReduce::kernel() const {
  const auto dtype = reduced_dtype(reduce_name, values, op);
  check_segments(reduce_name, {"values", values}, offsets);
  if (is_converted(op, values)) return with_converted(*this, &SegmentReduce::values);
  check_offset_values(reduce_name, {"offsets", offsets}, values.sym_size(0), validate);
  Tensor out = empty_result(with_rows(values, offsets.sym_size(0) - 1), values.options().dtype(dtype));
  if (is_done(out, segment_reduce::ladder, reduce_name, algorithm)) return out;
  const Tensor in = values.contiguous(), o = offsets.contiguous();
  auto args = segmented_args(reduce_name, in, o, in.size(0));
  args.step = Step::reduce;
  args.op = op_of(reduce_name, Combines::groups, op, in);
  args.dtype = combining_dtype(reduce_name, op, in);
  args.out = out.mutable_data_ptr();
  run(segment_reduce::ladder, segment_reduce::choose, reduce_name, algorithm, in, args);
  return out;
}

Autocast SegmentReduce::autocast() const { return rounds(op) ? Autocast::float32 : Autocast::none; }

Tensor SegmentExpand::kernel() const {
  check_segments(expand_name, {"x", x}, offsets);
  TORCH_CHECK_VALUE(TORCH_GUARD_OR_TRUE(x.sym_size(0).sym_eq(offsets.sym_size(0) - 1)), expand_name, ": x has ",
                    x.sym_size(0), " rows, offsets are of ", offsets.sym_size(0) - 1, " segments");
  TORCH_CHECK_VALUE(n >= 0, expand_name, ": n must not be negative, got ", n);
  check_offset_values(expand_name, {"offsets", offsets}, n, validate);
  Tensor out = empty_result(with_rows(x, n), x.options());
  if (is_done(out, segment_reduce::ladder, expand_name, algorithm)) return out;
  const Tensor in = canonical(x), o = offsets.contiguous();  // values are copied as bytes
  auto args = segmented_args(expand_name, in, o, n.expect_int());
  args.step = Step::expand;
  args.out = out.mutable_data_ptr();
  run(segment_reduce::ladder, segment_reduce::choose, expand_name, algorithm, in, args);
  return out;
}

// ---- derivatives

Tensors SegmentReduce::vjp(const Backward& b) const {
  return reduction_vjp(op, values, Segments{*this, b.sizes(0)[0]}, b.grad());
}

Tensors SegmentReduce::jvp(const Forward& f) const {
  return reduction_jvp(op, values, Segments{*this, f.tangent().sym_size(0)}, f.tangent());
}

Tensors SegmentExpand::vjp(const Backward& b) const {
  return {call(SegmentReduce{b.grad(), offsets, "sum", false, algorithm})};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<SegmentReduce, SegmentExpand>(m); }

}  // namespace tp
