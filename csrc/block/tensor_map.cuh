// Copies of boxes of a tensor to shared memory by one instruction (PTX ISA, "Tensor copies"). One thread starts a copy;
// the hardware computes the addresses, writes zeros for elements outside of the tensor, and swizzles the vectors as
// wgmma.cuh expects. A tensor map, which the driver makes, describes the tensor and the shape of the boxes. Requires
// compute capability 9.0.
#pragma once
#include <cuda.h>

#include "block/wgmma.cuh"

namespace tp::block {

// Looks up a function of the driver, to which this library is not linked.
template <class F>
F* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  require(
      cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found) == cudaSuccess && function,
      "tensor maps: the driver has no ", name);
  return reinterpret_cast<F*>(function);
}

// Makes the context of the current device that of the calling thread. Tensor maps cannot be made without one, and a
// thread of autograd has none before its first call of the runtime that sets it.
inline void set_context() {
  static thread_local const bool is_set = [] {
    int device = 0;
    return cudaGetDevice(&device) == cudaSuccess && cudaSetDevice(device) == cudaSuccess;
  }();
  require(is_set, "tensor maps: the device has no context");
}

// Tensor maps begin at multiples of 16 bytes. An operand that does not is copied, so that its address does not choose
// the kernel, and with it the bits of the result.
template <class T>
T* aligned(T* data, int64_t bytes, Context& context) {
  if (reinterpret_cast<uintptr_t>(data) % 16 == 0) return data;
  void* const copy = context.allocate(bytes);
  cudaMemcpyAsync(copy, data, size_t(bytes), cudaMemcpyDeviceToDevice, cudaStream_t(context.stream));
  check_launch("tensor maps");
  return static_cast<T*>(copy);
}

template <class T>
constexpr CUtensorMapDataType element_type =
    std::is_same<T, half>::value ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;

// A map for boxes of 64 columns and `box_rows` rows of a matrix.
template <class T>
CUtensorMap matrix_map(const T* data, int64_t rows, int64_t cols, int64_t row_stride, int box_rows) {
  static const auto encode = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  CUtensorMap map;
  const cuuint64_t sizes[] = {cuuint64_t(cols), cuuint64_t(rows)}, strides[] = {cuuint64_t(row_stride) * sizeof(T)};
  const cuuint32_t box[] = {row_elements, cuuint32_t(box_rows)}, steps[] = {1, 1};
  const CUresult status =
      encode(&map, element_type<T>, 2, const_cast<T*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(status == CUDA_SUCCESS, "tensor maps: the driver refuses a matrix, error ", int(status));
  return map;
}

// A map for boxes of `box_rows` rows and 64 columns, or another number of columns without swizzle, of one of n
// matrices, the planes, which follow each other in memory (the channels of the images of a batch in NCHW, for example).
// `cols` must be a multiple of 8.
template <class T>
CUtensorMap planes_map(const T* data, int64_t n, int64_t rows, int64_t cols, int box_rows,
                       int box_cols = row_elements) {
  static const auto encode = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  CUtensorMap map;
  const cuuint64_t sizes[] = {cuuint64_t(cols), cuuint64_t(rows), cuuint64_t(n)},
                   strides[] = {cuuint64_t(cols) * sizeof(T), cuuint64_t(rows * cols) * sizeof(T)};
  const cuuint32_t box[] = {cuuint32_t(box_cols), cuuint32_t(box_rows), 1}, steps[] = {1, 1, 1};
  const CUresult status =
      encode(&map, element_type<T>, 3, const_cast<T*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             box_cols == row_elements ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(status == CUDA_SUCCESS, "tensor maps: the driver refuses matrices, error ", int(status));
  return map;
}

// Begins to read a map that is an argument of the kernel, so that the first copy need not wait for it.
TP_DEVICE inline void prefetch_map(const CUtensorMap& map) {
#if TP_WGMMA
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

// Whether this is the one lane of a whole warp that is to start a copy. It tells the compiler that there is only one:
// so the arguments of the copy, which all lanes compute alike, can stay in the uniform registers that it reads.
TP_DEVICE inline bool elect_lane() {
  unsigned elected = 0;
#if TP_WGMMA
  asm volatile("{ .reg .pred elected; elect.sync _|elected, 0xffffffff; selp.u32 %0, 1, 0, elected; }" : "=r"(elected));
#endif
  return elected != 0;
}

// ---- the copies; `barrier` waits for their bytes

// The current round of the barrier does not end before that many bytes have arrived.
TP_DEVICE inline void expect_bytes(Barrier& barrier, int bytes) {
#if TP_WGMMA
  barrier.expect(bytes);
#endif
}

// Does so and arrives, in one instruction.
TP_DEVICE inline void arrive_expecting(Barrier& barrier, int bytes) {
#if TP_WGMMA
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier.address()), "r"(bytes)
               : "memory");
#endif
}

TP_DEVICE inline void copy_matrix(const CUtensorMap& map, int row, int col, unsigned to, Barrier& barrier) {
#if TP_WGMMA
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(to),
      "l"(&map), "r"(col), "r"(row), "r"(barrier.address())
      : "memory");
#endif
}

TP_DEVICE inline void copy_planes(const CUtensorMap& map, int plane, int row, int col, unsigned to, Barrier& barrier) {
#if TP_WGMMA
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(&map), "r"(col), "r"(row), "r"(plane), "r"(barrier.address())
      : "memory");
#endif
}

// Copy from shared memory to a box of the tensor, except for elements outside of it. They run until wait_for_stores().
TP_DEVICE inline void store_planes(const CUtensorMap& map, int plane, int row, int col, unsigned from) {
#if TP_WGMMA
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
               "r"(col), "r"(row), "r"(plane), "r"(from)
               : "memory");
#endif
}

// Copies so many bytes, which follow each other, from shared memory. Addresses and `bytes` are multiples of 16.
TP_DEVICE inline void store_bytes(const void* from, int bytes, void* to) {
#if TP_WGMMA
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
               "r"(bytes)
               : "memory");
#endif
}

// Copies so many bytes from shared memory to that of another block of the cluster, whose barrier waits for them.
// Addresses and the barrier are those that this block has; the addresses and `bytes` are multiples of 16.
TP_DEVICE inline void copy_to_block(unsigned to, int block, unsigned from, int bytes, const Barrier& barrier) {
#if TP_WGMMA
  asm volatile(
      "{ .reg .b32 there, full; mapa.shared::cluster.u32 there, %0, %1; mapa.shared::cluster.u32 full, %4, %1; "
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [there], [%2], %3, [full]; }" ::"r"(to),
      "r"(block), "r"(from), "r"(bytes), "r"(barrier.address())
      : "memory");
#endif
}

TP_DEVICE inline void commit_stores() {
#if TP_WGMMA
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Waits until the stores that this thread has committed, except for the latest `groups` groups, have finished reading
// shared memory.
template <int groups = 0>
TP_DEVICE void wait_for_stores() {
#if TP_WGMMA
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(groups) : "memory");
#endif
}

// Makes what this thread has written to shared memory visible to such stores, which must follow after a barrier.
TP_DEVICE inline void publish_shared() {
#if TP_WGMMA
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Makes barriers that this thread has initialized visible to the copies. A fence for all memory would wait for that of
// the whole device.
TP_DEVICE inline void publish_barriers() {
#if TP_WGMMA
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace tp::block
