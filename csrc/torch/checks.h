// Checks that several operators need.
#pragma once
#include "torch/operator.h"

namespace tp {

using Sizes = std::vector<SymInt>;

struct Named {
  const char* name;
  const Tensor& tensor;
};

// Checks that all tensors are floating point, of one dtype and on one device.
inline void check_floats(const char* op, std::initializer_list<Named> tensors) {
  const Named& first = *tensors.begin();
  TORCH_CHECK_TYPE(first.tensor.is_floating_point(), op, ": ", first.name, " must be floating point, got ",
                   first.tensor.scalar_type());
  dtype_of_tensor(op, first.tensor);
  for (const Named& t : tensors) {
    check_same_device(op, {{first.name, &first.tensor}, {t.name, &t.tensor}});
    TORCH_CHECK_TYPE(t.tensor.scalar_type() == first.tensor.scalar_type(), op, ": ", first.name, " is ",
                     first.tensor.scalar_type(), ", ", t.name, " is ", t.tensor.scalar_type());
  }
}

inline void check_float(const char* op, const char* name, const Tensor& x) {
  TORCH_CHECK_TYPE(x.is_floating_point(), op, ": ", name, " must be floating point, got ", x.scalar_type());
  dtype_of_tensor(op, x);
}

// Tells whether two shapes are equal, as a symbolic condition that TORCH_SYM_CHECK can defer until sizes are known.
inline c10::SymBool same_sizes(SymIntArrayRef a, SymIntArrayRef b) {
  c10::SymBool same(a.size() == b.size());
  for (size_t d = 0; d < a.size() && d < b.size(); ++d) same = same.sym_and(a[d].sym_eq(b[d]));
  return same;
}

}  // namespace tp
