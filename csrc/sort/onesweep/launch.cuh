// How onesweep's kernels are launched.
#pragma once
#include "block/launch.cuh"

namespace tp::sort::device {

// As many blocks as stay on the machine together and take work until there is no more, but no more than `most`.
inline int64_t resident(int64_t most, int blocks_a_multiprocessor) {
  return tp::min(most, int64_t(blocks_a_multiprocessor) * block::device_attribute<cudaDevAttrMultiProcessorCount>());
}

// `overlaps`: the kernel waits for the launch before it by itself.
template <class Params>
void launch(void (*kernel)(Params), int64_t blocks, int threads, int64_t bytes, bool overlaps,
            const std::common_type_t<Params>& params, Context& context) {
  if (bytes > 32 << 10) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
  if (overlaps) {
    block::launch_early(kernel, unsigned(blocks), threads, int(bytes), context, params);
  } else {
    kernel<<<unsigned(blocks), threads, bytes, cudaStream_t(context.stream)>>>(params);
  }
  check_launch("onesweep");
}

}  // namespace tp::sort::device
