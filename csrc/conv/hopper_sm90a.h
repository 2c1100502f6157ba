// The products that implicit_gemm computes by the tensor core instructions of Hopper, for half types. They have a file
// of their own because it is compiled for sm_90a.
#pragma once
#include "conv/gather.h"

namespace tp::conv {

// Return false and compute nothing on other devices, or if the channels do not suit.
template <class T>
bool gather_on_hopper(const Gather<T>& g, Context& context);
template <class T>
bool wgrad_on_hopper(const Elements<T>& e, Context& context);

}  // namespace tp::conv
