// The products of grouped_gemm that the tensor core instructions of Hopper compute, for half types. They have a file of
// their own because it is compiled for sm_90a.
#pragma once
#include "segmented/matmul.h"

namespace tp::segment_matmul {

// Whether they compute this product: the current device has them, and tensor maps can describe the matrices.
bool is_for_hopper(const Args& args);

void multiply_on_hopper(const Args& args, Context& context);

}  // namespace tp::segment_matmul
