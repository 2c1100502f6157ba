// Dependent launches (programmatic dependent launch): a kernel starts while the launch before it is still running, if
// that launch allows it. It prepares what does not depend on the earlier launch, then waits; after the wait, everything
// that the earlier launch wrote is visible.
#pragma once
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

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

// A number per device that is queried from the driver once. Devices beyond the table are queried every time.
class PerDevice {
 public:
  template <class F>
  int get(F ask) {
    int device = 0;
    cudaGetDevice(&device);
    if (device >= devices) return ask(device);
    const int known = values_[device].load(std::memory_order_relaxed);
    if (known) return known - 1;
    const int value = ask(device);
    values_[device].store(value + 1, std::memory_order_relaxed);  // 0 stands for unknown
    return value;
  }

 private:
  static constexpr int devices = 64;
  std::atomic<int> values_[devices] = {};
};

template <cudaDeviceAttr attribute>
int device_attribute() {
  static PerDevice values;
  return values.get([](int device) {
    int value = 0;
    cudaDeviceGetAttribute(&value, attribute, device);
    return value;
  });
}

// There are a thousand signatures of kernels. So what follows does its work in functions that take a kernel by its
// address, and the templates only call them.
template <class... Parameters>
const void* address(void (*kernel)(Parameters...)) {
  return reinterpret_cast<const void*>(kernel);
}

inline bool is_for_hopper(const void* kernel, PerDevice& known) {
  return known.get([&](int) {
    cudaFuncAttributes compiled{};
    cudaFuncGetAttributes(&compiled, kernel);
    return int(compiled.ptxVersion >= 90);
  });
}

// Whether a kernel is compiled for devices with clusters and dependent launches (compute capability 9.0 and later); on
// others its cluster barriers and waits do nothing. One answer serves all kernels of a signature, which must be
// compiled for the same devices: no signature is shared by a file named *_sm90a.cu and another one.
template <class... Parameters>
bool is_for_hopper(void (*kernel)(Parameters...)) {
  static PerDevice known;
  return is_for_hopper(address(kernel), known);
}

// Lets blocks of a kernel use so much dynamic shared memory, if it is more than the 48 KB that need no permission. The
// driver keeps one limit per kernel and device, which is only raised here: another thread may be about to launch blocks
// that need the limit it has.
inline void allow_shared_memory(const void* kernel, int bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, int> limits;
  int device = 0;
  cudaGetDevice(&device);
  const std::lock_guard<std::mutex> locked(mutex);
  int& limit = limits[{device, kernel}];
  if (bytes <= limit) return;
  const auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status == cudaSuccess) limit = bytes;
}
template <class... Parameters>
void allow_shared_memory(void (*kernel)(Parameters...), int bytes) {
  allow_shared_memory(address(kernel), bytes);
}

inline void launch_kernel(const void* kernel, bool for_hopper, dim3 blocks, int cluster, int threads, int shared_bytes,
                          Context& context, void** arguments) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = unsigned(cluster);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(unsigned(threads));
  config.dynamicSmemBytes = size_t(shared_bytes);
  config.stream = cudaStream_t(context.stream);
  config.attrs = attributes;
  config.numAttrs = !for_hopper ? 0 : cluster > 1 ? 2 : 1;
  cudaLaunchKernelExC(&config, kernel, arguments);
}

// Launches a kernel, in clusters of `cluster` blocks, that may start while the previous launch is still running. Every
// thread must call wait_for_launch_before() before it touches memory that another launch may have written or may still
// read. What it reads before that must come from other operators, and an ordinary launch of its own operator must
// precede it, which starts when they have ended.
//
// A kernel that shares no memory with the previous launch may wait at its end instead. It starts when all blocks of
// that launch have called allow_next_launch(); if they waited before, or if that launch is an ordinary one, the
// launches before it have ended by then. Only the lines of the L1 cache may be older.
template <class... Parameters>
void launch_clusters(void (*kernel)(Parameters...), dim3 blocks, int cluster, int threads, int shared_bytes,
                     Context& context, std::common_type_t<Parameters>... arguments) {
  void* given[] = {&arguments...};
  launch_kernel(address(kernel), is_for_hopper(kernel), blocks, cluster, threads, shared_bytes, context, given);
}

// The same without clusters.
template <class... Parameters>
void launch_early(void (*kernel)(Parameters...), dim3 blocks, int threads, int shared_bytes, Context& context,
                  std::common_type_t<Parameters>... arguments) {
  launch_clusters(kernel, blocks, 1, threads, shared_bytes, context, arguments...);
}

// How many clusters of a kernel can run at once, at one block per multiprocessor. One answer per size serves all
// kernels of a signature.
template <class... Parameters>
int clusters_at_once(void (*kernel)(Parameters...), int threads, int shared_bytes, int cluster) {
  constexpr int most = 8;
  static PerDevice values[most];
  return values[cluster - 1].get([&](int) {
    allow_shared_memory(kernel, shared_bytes);
    cudaLaunchAttribute size{};
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim.x = unsigned(cluster);
    size.val.clusterDim.y = size.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(cluster));
    config.blockDim = dim3(unsigned(threads));
    config.dynamicSmemBytes = size_t(shared_bytes);
    config.attrs = &size;
    config.numAttrs = 1;
    int clusters = 0;
    const bool known = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess;
    if (!known) cudaGetLastError();
    return known ? clusters : 0;
  });
}

}  // namespace tp::block
