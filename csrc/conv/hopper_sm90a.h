// What implicit_gemm computes by the tensor cores of a Hopper in their own way, for half types; in a file of its own,
// which is compiled for sm_90a.
#pragma once
#include "conv/gather.h"

namespace tp::conv {

// false, and nothing is computed, on another device or if the channels do not suit.
template <class T>
bool gather_on_hopper(const Gather<T>& g, Context& context);
template <class T>
bool wgrad_on_hopper(const Elements<T>& e, Context& context);

}  // namespace tp::conv
