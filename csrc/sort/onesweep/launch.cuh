// How onesweep's kernels are launched.
#pragma once
#include "block/launch.cuh"

namespace tp::sort::device {

// The number of blocks that can be resident together, but at most `most`. These blocks take work until there is none
// left.
inline int64_t resident(int64_t most, int blocks_per_multiprocessor) {
  return tp::min(most, int64_t(blocks_per_multiprocessor) * block::device_attribute<cudaDevAttrMultiProcessorCount>());
}

// `overlaps`: the kernel may start before the previous launch ends, and itself waits for it.
template <class Params>
void launch(void (*kernel)(Params), int64_t blocks, int threads, int64_t bytes, bool overlaps,
            const std::common_type_t<Params>& params, Context& context) {
  if (bytes > 32 << 10) block::allow_shared_memory(kernel, int(bytes));
  if (overlaps) {
    block::launch_early(kernel, unsigned(blocks), threads, int(bytes), context, params);
  } else {
    kernel<<<unsigned(blocks), threads, bytes, cudaStream_t(context.stream)>>>(params);
  }
  check_launch("onesweep");
}

}  // namespace tp::sort::device
