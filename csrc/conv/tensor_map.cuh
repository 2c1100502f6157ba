// Copies of boxes of a tensor to shared memory by one instruction (PTX ISA, "Tensor copies"). One thread starts a copy;
// the hardware computes the addresses, writes zeros for elements outside of the tensor, and swizzles the vectors as
// wgmma.cuh expects. A tensor map, which the driver makes, describes the tensor and the shape of the boxes. Requires
// compute capability 9.0.
#pragma once
#include <cuda.h>

#include "conv/relayout.cuh"
#include "conv/wgmma.cuh"

namespace tp::conv {

// Looks up a function of the driver, to which this library is not linked.
template <class F>
F* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  require(
      cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found) == cudaSuccess && function,
      "implicit_gemm: the driver has no ", name);
  return reinterpret_cast<F*>(function);
}

// Makes the context of the current device that of the calling thread. Tensor maps cannot be made without one, and a
// thread of autograd has none before its first call of the runtime that sets it.
inline void set_context() {
  static thread_local const bool is_set = [] {
    int device = 0;
    return cudaGetDevice(&device) == cudaSuccess && cudaSetDevice(device) == cudaSuccess;
  }();
  require(is_set, "implicit_gemm: the device has no context");
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
  require(status == CUDA_SUCCESS, "implicit_gemm: the driver refuses a matrix, error ", int(status));
  return map;
}

// A map for boxes of 64 pixels of `box_rows` channels of one image, if the pixels of a channel are contiguous (NCHW).
// `pixels` must be a multiple of 8.
template <class T>
CUtensorMap planes_map(const T* data, int64_t n, int64_t channels, int64_t pixels, int box_rows) {
  static const auto encode = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  CUtensorMap map;
  const cuuint64_t sizes[] = {cuuint64_t(pixels), cuuint64_t(channels), cuuint64_t(n)},
                   strides[] = {cuuint64_t(pixels) * sizeof(T), cuuint64_t(channels * pixels) * sizeof(T)};
  const cuuint32_t box[] = {row_elements, cuuint32_t(box_rows), 1}, steps[] = {1, 1, 1};
  const CUresult status =
      encode(&map, element_type<T>, 3, const_cast<T*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(status == CUDA_SUCCESS, "implicit_gemm: the driver refuses the planes of a batch, error ", int(status));
  return map;
}

// A batch that stores the channels of a pixel next to each other: its sizes, and the strides of its dimensions (from
// Strides or ChannelsLast).
struct BatchMap {
  cuuint64_t sizes[4], strides[3];

  template <class Strided>
  BatchMap(const Strided& array, int64_t n, int64_t channels, int64_t rows, int64_t cols, int64_t element)
      : sizes{cuuint64_t(channels), cuuint64_t(cols), cuuint64_t(rows), cuuint64_t(n)},
        strides{cuuint64_t(array.col * element), cuuint64_t(array.row * element), cuuint64_t(array.image * element)} {}
};

// A map for boxes of 64 channels of pixels of one image, taking every row_step-th row and col_step-th column.
template <class T>
CUtensorMap window_map(const T* data, const BatchMap& batch, int box_rows, int box_cols, int row_step = 1,
                       int col_step = 1) {
  static const auto encode = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  CUtensorMap map;
  const cuuint32_t box[] = {row_elements, cuuint32_t(box_cols * col_step), cuuint32_t(box_rows * row_step), 1};
  const cuuint32_t steps[] = {1, cuuint32_t(col_step), cuuint32_t(row_step), 1};
  const CUresult status = encode(&map, element_type<T>, 4, const_cast<T*>(data), batch.sizes, batch.strides, box, steps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(status == CUDA_SUCCESS, "implicit_gemm: the driver refuses a batch, error ", int(status));
  return map;
}

// A map for runs of `count` consecutive output pixels of the whole batch, with the 64 channels that one tap of each
// pixel reads.
template <class T>
CUtensorMap tap_map(const T* data, const BatchMap& batch, const Axis& rows, const Axis& cols, int count) {
  static const auto encode = driver_function<decltype(cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
  CUtensorMap map;
  // The first tap reads from `first` to the size plus `last`. Columns come before rows.
  const auto last = [](const Axis& a) { return int((a.out - 1) * a.stride - a.pad - (a.in - 1)); };
  const int first[] = {int(-cols.pad), int(-rows.pad)}, end[] = {last(cols), last(rows)};
  const cuuint32_t steps[] = {1, cuuint32_t(cols.stride), cuuint32_t(rows.stride), 1};
  const CUresult status =
      encode(&map, element_type<T>, 4, const_cast<T*>(data), batch.sizes, batch.strides, first, end, row_elements,
             cuuint32_t(count), steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(status == CUDA_SUCCESS, "implicit_gemm: the driver refuses the taps of a batch, error ", int(status));
  return map;
}

// Whether the hardware's limits allow tap_map for this axis.
inline bool has_tap_map(const Axis& a) {
  const int64_t last = (a.out - 1) * a.stride - a.pad - (a.in - 1);
  return a.stride <= 8 && a.pad <= 128 && last >= -128 && last <= 127 && (a.kernel - 1) * a.dilation <= 255;
}

// ---- the copies; `barrier` waits for their bytes

// The current round of the barrier does not end before that many bytes have arrived.
TP_DEVICE inline void expect_bytes(block::Barrier& barrier, int bytes) {
#if TP_WGMMA
  barrier.expect(bytes);
#endif
}

TP_DEVICE inline void copy_matrix(const CUtensorMap& map, int row, int col, unsigned to, block::Barrier& barrier) {
#if TP_WGMMA
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(to),
      "l"(&map), "r"(col), "r"(row), "r"(barrier.address())
      : "memory");
#endif
}

TP_DEVICE inline void copy_planes(const CUtensorMap& map, int image, int channel, int pixel, unsigned to,
                                  block::Barrier& barrier) {
#if TP_WGMMA
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(&map), "r"(pixel), "r"(channel), "r"(image), "r"(barrier.address())
      : "memory");
#endif
}

TP_DEVICE inline void copy_window(const CUtensorMap& map, int image, int row, int col, int channel, unsigned to,
                                  block::Barrier& barrier) {
#if TP_WGMMA
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(&map), "r"(channel), "r"(col), "r"(row), "r"(image), "r"(barrier.address())
      : "memory");
#endif
}

// (row, col) is what the first tap of the first pixel reads; the wanted tap is `down` rows and `across` columns further
// on.
TP_DEVICE inline void copy_tap(const CUtensorMap& map, int image, int row, int col, int channel, int down, int across,
                               unsigned to, block::Barrier& barrier) {
#if TP_WGMMA
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(to),
      "l"(&map), "r"(channel), "r"(col), "r"(row), "r"(image), "r"(barrier.address()), "h"(uint16_t(across)),
      "h"(uint16_t(down))
      : "memory");
#endif
}

// Copy from shared memory to a box of the tensor, except for elements outside of it. They run until wait_for_stores().
TP_DEVICE inline void store_window(const CUtensorMap& map, int image, int row, int col, int channel, unsigned from) {
#if TP_WGMMA
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
               "r"(channel), "r"(col), "r"(row), "r"(image), "r"(from)
               : "memory");
#endif
}

TP_DEVICE inline void store_planes(const CUtensorMap& map, int image, int channel, int pixel, unsigned from) {
#if TP_WGMMA
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
               "r"(pixel), "r"(channel), "r"(image), "r"(from)
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

// Makes barriers that this thread has initialized visible to the copies.
TP_DEVICE inline void publish_barriers() {
#if TP_WGMMA
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

}  // namespace tp::conv
