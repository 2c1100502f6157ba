// The operators on truth values and on bits, which reductions and scans share. any and all are the maximum and minimum
// of truth values. Operators on bits depend only on the size of an integer; for bool they work on bytes of 0 and 1.
#pragma once
#include <ATen/ATen.h>

#include "torch/glue.h"

namespace tp {

inline bool is_logical(Str op) { return op == "any" || op == "all"; }
inline bool is_bitwise(Str op) { return op == "bitwise_and" || op == "bitwise_or" || op == "bitwise_xor"; }

// Returns the operator of a bitwise name, for a tensor that has bits.
inline OpId bitwise_of(const char* pattern, Str op, const Tensor& x) {
  TORCH_CHECK_TYPE(at::isIntegralType(x.scalar_type(), /*includeBool=*/true), pattern, ": op '", std::string(op),
                   "' needs integers or bool, got ", x.scalar_type());
  return op == "bitwise_and" ? OpId::bitwise_and : op == "bitwise_or" ? OpId::bitwise_or : OpId::bitwise_xor;
}

// The dtype of the list BitTypes that has the size of `dtype`.
inline DType bits_of(DType dtype) { return dtype == DType::int8 || dtype == DType::boolean ? DType::uint8 : dtype; }

// Calls `Op` with another first tensor and another operator: any and all become an extremum, and bitwise operators of
// bool work on bytes, of whose result only the lowest bit counts.
template <class Op>
Tensor logical(Op op, Tensor Op::* x) {
  Tensor& values = op.*x;
  op.op = op.op == "any" ? "max" : "min";
  if (values.scalar_type() != at::kBool) values = values.ne(0);
  return op.kernel();
}
template <class Op>
Tensor bitwise_of_bool(Op op, Tensor Op::* x) {
  Tensor& values = op.*x;
  values = values.view(at::kByte).ne(0).to(at::kByte);
  return at::bitwise_and(op.kernel(), 1).to(at::kBool);
}

}  // namespace tp
