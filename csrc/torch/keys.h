// Converts a tensor's dtype to the order of its elements as keys.
#pragma once
#include "core/key.h"
#include "torch/glue.h"

namespace tp {

inline KeyType key_type(const char* op, const Tensor& x) {
  const auto bytes = int8_t(x.element_size()), bits = int8_t(8 * x.element_size());
  switch (x.scalar_type()) {
    case at::kBool:
      return {KeyKind::unsigned_integer, 1, 1, 0};
    case at::kByte:
    case at::kUInt16:
    case at::kUInt32:
    case at::kUInt64:
      return {KeyKind::unsigned_integer, bytes, bits, 0};
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
      return {KeyKind::signed_integer, bytes, bits, 0};
    case at::kHalf:
      return {KeyKind::floating, bytes, bits, 0x7c00};
    case at::kBFloat16:
      return {KeyKind::floating, bytes, bits, 0x7f80};
    case at::kFloat:
      return {KeyKind::floating, bytes, bits, 0x7f800000};
    case at::kDouble:
      return {KeyKind::floating, bytes, bits, 0x7ff0000000000000};
    default:
      TORCH_CHECK_TYPE(false, op, ": dtype ", x.scalar_type(), " is not supported");
  }
}

}  // namespace tp
