// Checks that several operators need.
#pragma once
#include "torch/glue.h"

namespace tp {

struct Named {
  const char* name;
  const Tensor& tensor;
};

// All floating point, of one dtype and on one device.
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

}  // namespace tp
