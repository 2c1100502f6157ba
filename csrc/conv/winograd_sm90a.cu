// Winograd's convolution in one kernel, compiled for sm_90a, the target on which warpgroups exchange registers.
#include "conv/winograd_sm90a.h"
#ifdef __CUDACC__
#include "conv/winograd_fused.cuh"

namespace tp::conv {

bool winograd_on_hopper(const Gather<float>& g, boolean* noted, Context& context) {
  return launch_winograd_fused(g, noted, context);
}

}  // namespace tp::conv
#endif
