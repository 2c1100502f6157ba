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

void check_pairs(const char* op, const Named& keys, const Named& values) {
  check_same_device(op, {{keys.name, &keys.tensor}, {values.name, &values.tensor}});
  check_same_shape(op, keys, values);
  const auto bytes = values.tensor.element_size();
  TORCH_CHECK_TYPE(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16, op, ": ", values.name, " of ",
                   values.tensor.scalar_type(), " are not supported");
}

void give_values(sort::Args& args, const Tensor& values, Tensor& out) {
  args.values = data_or_null(values);
  args.values_out = out.mutable_data_ptr();
  args.value_bytes = int(out.element_size());
}

namespace {

// `to` alone may return its input, which tools that check schemas below autograd reject.
Tensor as_long(const Tensor& indices) { return indices.scalar_type() == at::kLong ? indices : indices.to(at::kLong); }

}  // namespace

Tensor take(const Tensor& x, const Tensor& indices, int64_t dim) {
  if (!x.defined()) return x;
  if (x.dim() == 0) return x.clone();  // on CUDA, torch's deterministic gradient of gather does not take scalars
  const Tensor index = as_long(indices);
  switch (x.scalar_type()) {
    // torch does not gather unsigned integers of more than a byte, so they are viewed as signed ones.
    case at::kUInt16:
      return at::gather(x.view(at::kShort), dim, index).view(at::kUInt16);
    case at::kUInt32:
      return at::gather(x.view(at::kInt), dim, index).view(at::kUInt32);
    case at::kUInt64:
      return at::gather(x.view(at::kLong), dim, index).view(at::kUInt64);
    default:
      return at::gather(x, dim, index);
  }
}

Tensor put(const Tensor& x, const Tensor& indices, int64_t dim) {
  if (!x.defined()) return x;
  if (x.dim() == 0) return x.clone();
  return at::scatter(at::empty_like(x), dim, as_long(indices), x);  // writes every element
}

}  // namespace tp
