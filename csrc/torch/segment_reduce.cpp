// torch_patterns::segment_reduce and torch_patterns::segment_expand: checks, kernels, Meta, derivatives.
//
// Expansion is the transpose of the sum and vice versa, so derivatives of every order exist; torch/moments.h has the
// derivatives of all reductions.
#include "torch/gradient.h"
#include "torch/logical.h"
#include "torch/moments.h"
#include "torch/segmented.h"
#include "torch/segments.h"

namespace tp {
namespace {

using segmented::Step;

constexpr const char *reduce_name = "segment_reduce", *expand_name = "segment_expand";
Pattern pattern(reduce_name, segment_reduce::ladder);

OpId check_reduce(const Tensor& values, const Tensor& offsets, Str name) {
  const OpId op = reduction_of(reduce_name, name, values);
  check_segments(reduce_name, {"values", values}, offsets);
  reduced_dtype(reduce_name, values, name);
  return op;
}

void check_expand(const Tensor& x, const Tensor& offsets, const SymInt& n) {
  check_segments(expand_name, {"x", x}, offsets);
  TORCH_CHECK_VALUE(TORCH_GUARD_OR_TRUE(x.sym_size(0).sym_eq(offsets.sym_size(0) - 1)), expand_name, ": x has ",
                    x.sym_size(0), " rows, offsets are of ", offsets.sym_size(0) - 1, " segments");
  TORCH_CHECK_VALUE(n >= 0, expand_name, ": n must not be negative, got ", n);
}

// What moments.h requires of the rows of segments. The derivatives need not validate again.
struct Segments {
  const SegmentReduce& r;
  SymInt n;
  bool validate = false;

  Tensor reduce(const Tensor& x, Str op) const { return call(SegmentReduce{x, r.offsets, op, validate, r.algorithm}); }
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

// For var and std: the operator from which they are computed.
OpId reduction_of(const char* pattern, Str name, const Tensor& values) {
  if (is_bitwise(name)) return bitwise_of(pattern, name, values);
  if (name == "any") return OpId::max;
  if (name == "all") return OpId::min;
  if (name == "logsumexp") return OpId::logsumexp;
  if (name == "mean" || is_moment(name)) return OpId::mean;
  if (name == "argmax") return OpId::argmax;
  if (name == "argmin") return OpId::argmin;
  for (const char* scanned : {"sum", "prod", "max", "min"}) {
    if (name == scanned) return op_of(pattern, name);
  }
  TORCH_CHECK_VALUE(false, pattern, ": unknown op '", std::string(name),
                    "'; choose from: sum, prod, max, min, mean, var, std, argmax, argmin, logsumexp, any, all, "
                    "bitwise_and, bitwise_or, bitwise_xor");
}

at::ScalarType reduced_dtype(const char* pattern, const Tensor& values, Str name) {
  const OpId op = reduction_of(pattern, name, values);
  dtype_of_tensor(pattern, values);
  TORCH_CHECK_TYPE((op != OpId::mean && op != OpId::logsumexp) || values.is_floating_point(), pattern, ": op '",
                   std::string(name), "' needs floating point, got values of ", values.scalar_type());
  if (is_logical(name)) return at::kBool;
  if (op == OpId::argmax || op == OpId::argmin) return at::kLong;
  const bool widens = op == OpId::sum || op == OpId::prod;
  return widens && at::isIntegralType(values.scalar_type(), /*includeBool=*/true) ? at::kLong : values.scalar_type();
}

Tensor SegmentReduce::kernel() const {
  const OpId id = check_reduce(values, offsets, op);
  if (is_logical(op)) return logical(*this, &SegmentReduce::values);
  if (is_bitwise(op) && values.scalar_type() == at::kBool) return bitwise_of_bool(*this, &SegmentReduce::values);
  if (is_moment(op)) return moment(op, values, Segments{*this, values.size(0), validate});
  const Tensor in = values.contiguous(), o = offsets.contiguous();
  check_offset_values(reduce_name, {"offsets", o}, in.size(0), validate);
  auto shape = in.sizes().vec();
  shape[0] = o.size(0) - 1;
  Tensor out = empty_result(shape, in.options().dtype(reduced_dtype(reduce_name, in, op)));
  auto args = segmented_args(reduce_name, in, o, in.size(0));
  args.step = Step::reduce;
  args.op = id;
  if (is_bitwise(op)) args.dtype = bits_of(args.dtype);
  args.out = out.mutable_data_ptr();
  run_unless_empty(out, segment_reduce::ladder, segment_reduce::choose, reduce_name, algorithm, in, args);
  return out;
}

Tensor SegmentReduce::meta() const {
  check_reduce(values, offsets, op);
  check_algorithm(segment_reduce::ladder, reduce_name, algorithm);
  return at::empty_symint(with_rows(values, offsets.sym_size(0) - 1),
                          values.options().dtype(reduced_dtype(reduce_name, values, op)));
}

Autocast SegmentReduce::autocast() const {
  const bool rounds = op == "sum" || op == "prod" || op == "mean" || op == "logsumexp" || is_moment(op);
  return rounds ? Autocast::float32 : Autocast::none;
}

Tensor SegmentExpand::kernel() const {
  check_expand(x, offsets, n);
  const int64_t rows = n.expect_int();
  // Values are copied as bytes, but any byte other than 0 is true.
  const Tensor in = (x.scalar_type() == at::kBool ? x.view(at::kByte).ne(0) : x).contiguous(), o = offsets.contiguous();
  check_offset_values(expand_name, {"offsets", o}, rows, validate);
  auto shape = in.sizes().vec();
  shape[0] = rows;
  Tensor out = empty_result(shape, in.options());
  auto args = segmented_args(expand_name, in, o, rows);
  args.step = Step::expand;
  args.out = out.mutable_data_ptr();
  run_unless_empty(out, segment_reduce::ladder, segment_reduce::choose, expand_name, algorithm, in, args);
  return out;
}

Tensor SegmentExpand::meta() const {
  check_expand(x, offsets, n);
  check_algorithm(segment_reduce::ladder, expand_name, algorithm);
  return at::empty_symint(with_rows(x, n), x.options());
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

Tensors SegmentExpand::jvp(const Forward& f) const {
  return {call(SegmentExpand{f.tangent(), offsets, n, false, algorithm})};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<SegmentReduce, SegmentExpand>(m); }

}  // namespace tp
