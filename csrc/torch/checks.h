// Checks that several operators need.
#pragma once
#include "torch/operator.h"

namespace tp {

using Sizes = std::vector<SymInt>;

struct Named {
  const char* name;
  const Tensor& tensor;
};

inline void check_float(const char* op, const char* name, const Tensor& x) {
  TORCH_CHECK_TYPE(x.is_floating_point(), op, ": ", name, " must be floating point, got ", x.scalar_type());
  dtype_of_tensor(op, x);
}

// Checks that two tensors have one dtype and are on one device.
inline void check_alike(const char* op, const Named& a, const Named& b) {
  check_same_device(op, {{a.name, &a.tensor}, {b.name, &b.tensor}});
  TORCH_CHECK_TYPE(a.tensor.scalar_type() == b.tensor.scalar_type(), op, ": ", a.name, " is ", a.tensor.scalar_type(),
                   ", ", b.name, " is ", b.tensor.scalar_type());
}

// Checks that all tensors are floating point, of one dtype and on one device.
inline void check_floats(const char* op, std::initializer_list<Named> tensors) {
  const Named& first = *tensors.begin();
  check_float(op, first.name, first.tensor);
  for (const Named& t : tensors) check_alike(op, first, t);
}

inline void check_same_shape(const char* op, const Named& a, const Named& b) {
  TORCH_SYM_CHECK(sym_equals(a.tensor.sym_sizes(), b.tensor.sym_sizes()), op, ": ", a.name, " has shape ",
                  a.tensor.sym_sizes(), ", ", b.name, " has ", b.tensor.sym_sizes());
}

inline void check_vector(const char* op, const Named& x) {
  TORCH_CHECK_VALUE(x.tensor.dim() == 1, op, ": ", x.name, " must have one dimension, got shape ",
                    x.tensor.sym_sizes());
}

inline void check_index_type(const char* op, const Named& x) {
  const auto dtype = x.tensor.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kInt || dtype == at::kLong, op, ": ", x.name, " must be int32 or int64, got ", dtype);
}

}  // namespace tp
