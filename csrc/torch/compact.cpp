// torch_patterns::compact, compact_padded and compact_backward: schema, checks, Meta, Autograd.
//
// At a given mask both are linear, and compact_backward, which puts packed rows back where the mask is true, is the
// transpose of either; its own transpose is compact_padded, cut to the rows that there are. So every order of
// derivative is one of the three. Only compact waits for the device, which alone knows how many rows are kept: its
// Meta kernel, with a size that nobody knows, is in Python.
#include "compact/compact.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "torch/glue.h"

namespace tp {
namespace {

using c10::SymInt;
using compact::Step;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char *name = "compact", *padded_name = "compact_padded", *backward_name = "compact_backward";
Pattern pattern(name, compact::ladder);

Tensor call_compact(const Tensor& x, const Tensor& mask, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, Str)>(name);
  return handle.call(x, mask, algorithm);
}

std::tuple<Tensor, Tensor> call_padded(const Tensor& x, const Tensor& mask, const at::Scalar& fill, Str algorithm) {
  static const auto handle =
      op<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const at::Scalar&, Str)>(padded_name);
  return handle.call(x, mask, fill, algorithm);
}

Tensor call_backward(const Tensor& grad, const Tensor& mask, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, Str)>(backward_name);
  return handle.call(grad, mask, algorithm);
}

void check_mask(const char* op, const char* other_name, const Tensor& other, const Tensor& mask) {
  dtype_of_tensor(op, other);
  TORCH_CHECK_TYPE(mask.scalar_type() == at::kBool, op, ": mask must be bool, got ", mask.scalar_type());
  check_same_device(op, {{other_name, &other}, {"mask", &mask}});
}

void check_pack(const char* op, const Tensor& x, const Tensor& mask) {
  check_mask(op, "x", x, mask);
  TORCH_CHECK(mask.dim() <= x.dim() && mask.sym_sizes() == x.sym_sizes().slice(0, size_t(mask.dim())), op,
              ": mask must have the shape of x or of its leading dimensions, got ", mask.sym_sizes(), " for x ",
              x.sym_sizes());
}

void check_unpack(const Tensor& grad, const Tensor& mask) {
  check_mask(backward_name, "grad", grad, mask);
  TORCH_CHECK_TYPE(grad.is_floating_point(), backward_name, ": grad must be floating point, got ", grad.scalar_type());
  TORCH_CHECK(grad.dim() > 0, backward_name, ": grad must have a dimension of rows, got a scalar");
}

// `first`, then the sizes of x from `from` on.
template <class Size>
std::vector<Size> shape_of(std::vector<Size> first, c10::ArrayRef<Size> sizes, int64_t from) {
  first.insert(first.end(), sizes.begin() + from, sizes.end());
  return first;
}

// Integers hold whole numbers of their range, float dtypes every real number that does not round to infinity; as bool,
// every number but 0 is true.
void check_fill(const at::Scalar& fill, at::ScalarType dtype) {
  bool fits = !fill.isComplex();
  if (fits && at::isIntegralType(dtype, /*includeBool=*/false)) {
    const bool whole = !fill.isFloatingPoint() || (std::trunc(fill.toDouble()) == fill.toDouble() &&
                                                   std::abs(fill.toDouble()) < 9223372036854775808.0);
    fits = whole;
    if (whole) {
      const int64_t value = fill.isFloatingPoint() ? int64_t(fill.toDouble()) : fill.toLong();
      AT_DISPATCH_INTEGRAL_TYPES(dtype, "compact_padded", [&] {
        fits = value >= int64_t(std::numeric_limits<scalar_t>::lowest()) &&
               value <= int64_t(std::numeric_limits<scalar_t>::max());
      });
    }
  } else if (fits && dtype != at::kBool) {
    const double value = fill.toDouble();
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "compact_padded",
                                    [&] { fits = !std::isfinite(value) || std::isfinite(double(scalar_t(value))); });
  }
  TORCH_CHECK(fits, padded_name, ": fill ", fill, " is no value of ", dtype, ", the dtype of x");
}

// ---- kernels: CPU and CUDA alike

// The element, repeated to 8 bytes.
uint64_t fill_bits(const at::Scalar& fill, at::ScalarType dtype) {
  const Tensor one = at::full({}, fill, at::TensorOptions().dtype(dtype));
  const auto size = size_t(one.element_size());
  uint64_t bits = 0;
  for (size_t i = 0; i < 8; i += size) std::memcpy(reinterpret_cast<char*>(&bits) + i, one.const_data_ptr(), size);
  return bits;
}

// Rows are copied as bytes, and any byte but 0 is true.
Tensor contiguous(const Tensor& x) {
  const Tensor in = x.contiguous();
  return x.scalar_type() == at::kBool ? in.view(at::kByte).ne(0) : in;
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

std::tuple<Tensor, Tensor> padded_kernel(const Tensor& x, const Tensor& mask, const at::Scalar& fill, Str algorithm) {
  check_pack(padded_name, x, mask);
  check_fill(fill, x.scalar_type());
  const Tensor in = contiguous(x), keeps = mask.contiguous();
  Tensor out = empty_result(in.sizes(), in.options()), count = at::empty({}, in.options().dtype(at::kLong));
  compact::Args args = compact_args(Step::pack, keeps, in, mask.dim());
  args.out = out.mutable_data_ptr();
  args.count = count.mutable_data_ptr<int64_t>();
  args.packed = args.n;
  args.fill = fill_bits(fill, in.scalar_type());
  run(compact::ladder, compact::choose, padded_name, algorithm, in, args);
  return {out, count};
}

Tensor compact_kernel(const Tensor& x, const Tensor& mask, Str algorithm) {
  check_pack(name, x, mask);
  refuse_capture((std::string(name) + ": algorithm '" + std::string(algorithm) + "'").c_str(), x);
  const Tensor in = contiguous(x), keeps = mask.contiguous(), count = at::empty({}, in.options().dtype(at::kLong));
  compact::Args args = compact_args(Step::count, keeps, in, mask.dim());
  args.count = count.mutable_data_ptr<int64_t>();
  run(compact::ladder, compact::choose, name, algorithm, in, args);
  args.step = Step::pack;
  args.count = nullptr;
  args.packed = count.item<int64_t>();
  Tensor out = empty_result(shape_of({args.packed}, in.sizes(), mask.dim()), in.options());
  args.out = out.mutable_data_ptr();
  if (out.numel() > 0) run(compact::ladder, compact::choose, name, algorithm, in, args);
  return out;
}

Tensor backward_kernel(const Tensor& grad, const Tensor& mask, Str algorithm) {
  check_unpack(grad, mask);
  const Tensor in = grad.contiguous(), keeps = mask.contiguous();
  Tensor out = empty_result(shape_of(mask.sizes().vec(), in.sizes(), 1), in.options());
  compact::Args args = compact_args(Step::unpack, keeps, in, 1);
  args.out = out.mutable_data_ptr();
  args.packed = in.size(0);
  run(compact::ladder, compact::choose, backward_name, algorithm, in, args);
  return out;
}

// ---- Meta

std::tuple<Tensor, Tensor> padded_meta(const Tensor& x, const Tensor& mask, const at::Scalar& fill, Str algorithm) {
  check_pack(padded_name, x, mask);
  check_fill(fill, x.scalar_type());
  check_algorithm(compact::ladder, padded_name, algorithm);
  return {at::empty_symint(x.sym_sizes(), x.options()), at::empty({}, x.options().dtype(at::kLong))};
}

Tensor backward_meta(const Tensor& grad, const Tensor& mask, Str algorithm) {
  check_unpack(grad, mask);
  check_algorithm(compact::ladder, backward_name, algorithm);
  return at::empty_symint(shape_of(mask.sym_sizes().vec(), grad.sym_sizes(), 1), grad.options());
}

// ---- Autograd

struct CompactFunction : torch::autograd::Function<CompactFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& mask, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({mask});
    ctx->saved_data["algorithm"] = algorithm;
    return call_compact(x, mask, algorithm);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(3);
    const Tensor mask = ctx->get_saved_variables()[0];
    if (grads[0].defined()) {
      result[0] = call_backward(grads[0], mask, ctx->saved_data.at("algorithm").toStringRef());
    }
    return result;
  }
};

struct PaddedFunction : torch::autograd::Function<PaddedFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& mask, const at::Scalar& fill,
                               std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [values, count] = call_padded(x, mask, fill, algorithm);
    ctx->mark_non_differentiable({count});
    ctx->save_for_backward({mask});
    ctx->saved_data["algorithm"] = algorithm;
    return {values, count};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(4);
    const Tensor mask = ctx->get_saved_variables()[0], &g = grads[0];
    if (g.defined()) {
      const Tensor rows = g.reshape_symint(shape_of({mask.sym_numel()}, g.sym_sizes(), mask.dim()));
      result[0] = call_backward(rows, mask, ctx->saved_data.at("algorithm").toStringRef());
    }
    return result;
  }
};

struct BackwardFunction : torch::autograd::Function<BackwardFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& grad, const Tensor& mask, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({mask});
    ctx->saved_data["algorithm"] = algorithm;
    ctx->saved_data["rows"] = grad.sym_size(0);
    return call_backward(grad, mask, algorithm);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(3);
    if (!grads[0].defined()) return result;
    const Tensor mask = ctx->get_saved_variables()[0];
    const Tensor packed = std::get<0>(call_padded(grads[0], mask, 0, ctx->saved_data.at("algorithm").toStringRef()));
    const Tensor rows = packed.reshape_symint(shape_of({mask.sym_numel()}, packed.sym_sizes(), mask.dim()));
    const SymInt given = ctx->saved_data.at("rows").toSymInt(), most = rows.sym_size(0);
    result[0] = given <= most ? rows.narrow_symint(0, 0, given)
                              : at::cat({rows, rows.new_zeros_symint(shape_of({given - most}, rows.sym_sizes(), 1))});
    return result;
  }
};

Tensor compact_autograd(const Tensor& x, const Tensor& mask, Str algorithm) {
  return CompactFunction::apply(x, mask, std::string(algorithm));
}

std::tuple<Tensor, Tensor> padded_autograd(const Tensor& x, const Tensor& mask, const at::Scalar& fill, Str algorithm) {
  const auto result = PaddedFunction::apply(x, mask, fill, std::string(algorithm));
  return {result[0], result[1]};
}

Tensor backward_autograd(const Tensor& grad, const Tensor& mask, Str algorithm) {
  check_unpack(grad, mask);
  return BackwardFunction::apply(grad, mask, std::string(algorithm));
}

void register_kernels(torch::Library& m) {
  m.impl(name, &compact_kernel);
  m.impl(padded_name, &padded_kernel);
  m.impl(backward_name, &backward_kernel);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def("compact(Tensor x, Tensor mask, str algorithm=\"auto\") -> Tensor",
        {at::Tag::pt2_compliant_tag, at::Tag::dynamic_output_shape});
  m.def("compact_padded(Tensor x, Tensor mask, Scalar fill=0, str algorithm=\"auto\") -> (Tensor, Tensor)", tags);
  m.def("compact_backward(Tensor grad, Tensor mask, str algorithm=\"auto\") -> Tensor", tags);
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) {
  m.impl(padded_name, &padded_meta);
  m.impl(backward_name, &backward_meta);
}
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) {
  m.impl(name, &compact_autograd);
  m.impl(padded_name, &padded_autograd);
  m.impl(backward_name, &backward_autograd);
}

}  // namespace
}  // namespace tp
