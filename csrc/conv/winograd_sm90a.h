// Winograd's convolution in one kernel, on Hopper. It has a file of its own because it is compiled for sm_90a.
#pragma once
#include "conv/gather.h"

namespace tp::conv {

// Returns false and computes nothing on other devices, or if the filters do not suit. Otherwise it sets `noted` to
// whether an output is not finite.
bool winograd_on_hopper(const Gather<float>& g, boolean* noted, Context& context);

}  // namespace tp::conv
