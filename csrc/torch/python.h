// The parts of torch_patterns._C.
#pragma once
#include <pybind11/pybind11.h>

namespace tp {

void bind_operator_call(pybind11::module_& m);
void bind_matrix_market(pybind11::module_& m);

}  // namespace tp
