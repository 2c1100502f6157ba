// Shared by the segmented operators: checks, Args, and sizes of results.
#pragma once
#include <ATen/ATen.h>

#include "segmented/segmented.h"
#include "torch/index.h"

namespace tp {

// Checks that `values` are rows [n, ...] of a supported dtype and that `offsets` can be the offsets of segments.
inline void check_segments(const char* op, const Named& values, const Tensor& offsets) {
  TORCH_CHECK_VALUE(values.tensor.dim() > 0, op, ": ", values.name, " must have a dimension of rows, got a scalar");
  dtype_of_tensor(op, values.tensor);
  check_offsets(op, {"offsets", offsets}, values);
}

// The shape of x with another number of rows.
inline std::vector<c10::SymInt> with_rows(const Tensor& x, const c10::SymInt& rows) {
  auto shape = x.sym_sizes().vec();
  shape[0] = rows;
  return shape;
}

// The rows of x and one more, of zeros. It is written as padding because autocast, which stays on below the transforms
// of torch.func, refuses to join tensors of a half type that is not its own.
inline Tensor with_zero_row(const Tensor& x) {
  std::vector<c10::SymInt> pads(size_t(2 * x.dim()), 0);
  pads.back() = 1;
  return at::constant_pad_nd_symint(x, pads);
}

// For contiguous rows x and contiguous offsets of n rows.
inline segmented::Args segmented_args(const char* op, const Tensor& x, const Tensor& offsets, int64_t n) {
  segmented::Args args{};
  args.in = x.const_data_ptr();
  args.offsets = offsets.const_data_ptr();
  args.long_offsets = offsets.scalar_type() == at::kLong;
  args.n = n;
  args.segments = offsets.size(0) - 1;
  args.width = 1;
  for (const int64_t size : x.sizes().slice(1)) args.width *= size;
  args.dtype = dtype_of_tensor(op, x);
  return args;
}

// One number per row, shaped to broadcast with rows x.
inline Tensor beside_rows(Tensor numbers, const Tensor& x) {
  for (int64_t d = 1; d < x.dim(); ++d) numbers = numbers.unsqueeze(-1);
  return numbers;
}

}  // namespace tp
