// How onesweep's kernels are launched.
#pragma once
#include "core/context.h"

namespace tp::sort::device {

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

// As many blocks as stay on the machine together and take work until there is no more, but no more than `most`.
inline int64_t resident(int64_t most, int blocks_a_multiprocessor) {
  return tp::min(most, int64_t(blocks_a_multiprocessor) * device_attribute(cudaDevAttrMultiProcessorCount));
}

// `overlaps`: the kernel may be set up while the one before it still runs, and waits by itself, where it is compiled
// for a machine that knows how to.
template <class Kernel, class Params>
void launch(Kernel kernel, int64_t blocks, int threads, int64_t bytes, bool overlaps, const Params& params,
            Context& context) {
  if (bytes > 32 << 10) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
  cudaFuncAttributes compiled{};
  cudaFuncGetAttributes(&compiled, kernel);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(unsigned(threads));
  config.dynamicSmemBytes = size_t(bytes);
  config.stream = cudaStream_t(context.stream);
  config.attrs = &attribute;
  config.numAttrs = overlaps && compiled.ptxVersion >= 90 ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, params);
  check_launch("onesweep");
}

}  // namespace tp::sort::device
