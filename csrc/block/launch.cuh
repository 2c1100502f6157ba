// Launches that follow each other closely: one may begin while the launch before it, which allows that, still runs. It
// prepares what it can by itself, then waits, and finds all that the other wrote.
#pragma once
#include "core/context.h"
#include "core/simt.h"

namespace tp::block {

#if __CUDA_ARCH__ >= 900
TP_DEVICE inline void allow_next_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
TP_DEVICE inline void wait_for_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
TP_DEVICE inline void allow_next_launch() {}
TP_DEVICE inline void wait_for_launch_before() {}
#endif

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

// Whether a kernel is compiled for a machine with clusters and early launches: else it does not meet or wait there.
template <class... Parameters>
bool is_for_hopper(void (*kernel)(Parameters...)) {
  cudaFuncAttributes compiled{};
  cudaFuncGetAttributes(&compiled, kernel);
  return compiled.ptxVersion >= 90;
}

// For a kernel each thread of which waits before it touches what another launch may have written, or may still read;
// right after a launch of the same operator.
template <class... Parameters>
void launch_early(void (*kernel)(Parameters...), dim3 blocks, int threads, int shared_bytes, Context& context,
                  std::common_type_t<Parameters>... arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(unsigned(threads));
  config.dynamicSmemBytes = size_t(shared_bytes);
  config.stream = cudaStream_t(context.stream);
  config.attrs = &early;
  config.numAttrs = is_for_hopper(kernel);
  cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace tp::block
