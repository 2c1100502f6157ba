#include "torch/permutation.h"

#include <ATen/ATen.h>

namespace tp {

sort::Args sort_args(const char* op, const Tensor& keys, bool descending, int64_t begin_bit,
                     std::optional<int64_t> end_bit) {
  sort::Args args{};
  args.type = key_type(op, keys);
  const int64_t bits = args.type.bits, end = end_bit.value_or(bits);
  TORCH_CHECK_VALUE(0 <= begin_bit && begin_bit <= end && end <= bits, op, ": begin_bit ", begin_bit, " and end_bit ",
                    end, " are out of range: expected 0 <= begin_bit <= end_bit <= ", bits, " for ",
                    keys.scalar_type());
  args.descending = descending;
  args.begin_bit = int(begin_bit);
  args.end_bit = int(end);
  return args;
}

void check_pairs(const char* op, const Tensor& keys, const Tensor& values) {
  check_same_device(op, {{"keys", &keys}, {"values", &values}});
  TORCH_CHECK(values.sym_sizes() == keys.sym_sizes(), op, ": keys has shape ", keys.sym_sizes(), ", values has ",
              values.sym_sizes());
  const auto bytes = values.element_size();
  TORCH_CHECK_TYPE(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16, op, ": values of ",
                   values.scalar_type(), " are not supported");
}

Tensor raw_keys(const Tensor& x) {
  return x.scalar_type() == at::kBool ? x.contiguous().view(at::kByte).ne(0) : x.contiguous();
}

void give_keys(sort::Args& args, const Tensor& keys, Tensor& out) {
  args.keys = keys.const_data_ptr();
  args.keys_out = out.mutable_data_ptr();
}

void give_values(sort::Args& args, const Tensor& values, Tensor& out) {
  args.values = values.const_data_ptr();
  args.values_out = out.mutable_data_ptr();
  args.value_bytes = int(values.element_size());
}

bool needs_gradient(const Tensor& x) {
  const auto dtype = x.scalar_type();
  if (!at::isFloatingType(dtype) && !at::isComplexType(dtype)) return false;
  return (at::GradMode::is_enabled() && x.requires_grad()) || x._fw_grad(0).defined();
}

namespace {

// Unsigned integers go as signed ones where torch gathers no others.
template <class F>
Tensor as_signed(const Tensor& x, F f) {
  switch (x.scalar_type()) {
    case at::kUInt16:
      return f(x.view(at::kShort)).view(at::kUInt16);
    case at::kUInt32:
      return f(x.view(at::kInt)).view(at::kUInt32);
    case at::kUInt64:
      return f(x.view(at::kLong)).view(at::kUInt64);
    default:
      return f(x);
  }
}

template <bool takes>
struct Permute : torch::autograd::Function<Permute<takes>> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& indices, int64_t dim) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({indices});
    ctx->saved_data["dim"] = dim;
    at::AutoDispatchBelowADInplaceOrView below;
    if (x.dim() == 0) return x.clone();  // torch's deterministic scatter on CUDA takes no scalar
    const Tensor places = indices.scalar_type() == at::kLong ? indices : indices.to(at::kLong);
    return takes ? at::gather(x, dim, places) : at::scatter(x, dim, places, x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return variable_list(3);
    const Tensor indices = ctx->get_saved_variables()[0];
    return {Permute<!takes>::apply(grads[0], indices, ctx->saved_data.at("dim").toInt()), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor take_raw(const Tensor& x, const Tensor& indices, int64_t dim) {
  return as_signed(x, [&](const Tensor& y) { return at::gather(y, dim, indices); });
}

Tensor take(const Tensor& x, const Tensor& indices, int64_t dim) {
  return needs_gradient(x) ? Permute<true>::apply(x, indices, dim) : take_raw(x, indices, dim);
}

Tensor put(const Tensor& x, const Tensor& indices, int64_t dim) { return Permute<false>::apply(x, indices, dim); }

}  // namespace tp
