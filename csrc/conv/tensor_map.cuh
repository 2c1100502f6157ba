// Tensor maps of batches of images, and their copies (block/tensor_map.cuh).
#pragma once
#include "block/tensor_map.cuh"
#include "conv/relayout.h"

namespace tp::conv {

// A batch that stores the channels of a pixel next to each other: its sizes, and the strides of its dimensions (from
// Strides or ChannelsLast).
struct BatchMap {
  cuuint64_t sizes[4], strides[3];

  template <class Strided>
  BatchMap(const Strided& array, int64_t n, int64_t channels, int64_t rows, int64_t cols, int64_t element)
      : sizes{cuuint64_t(channels), cuuint64_t(cols), cuuint64_t(rows), cuuint64_t(n)},
        strides{cuuint64_t(array.col * element), cuuint64_t(array.row * element), cuuint64_t(array.image * element)} {}
};

// How wgmma.cuh expects the vectors of boxes of 64, 32 or 16 channels.
inline CUtensorMapSwizzle swizzle_of(int channels) {
  return channels == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
         : channels == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                          : CU_TENSOR_MAP_SWIZZLE_32B;
}

// A map for boxes of 64, 32 or 16 channels of pixels of `images` images.
template <class T>
CUtensorMap window_map(const T* data, const BatchMap& batch, int box_rows, int box_cols, int images = 1,
                       int channels = block::row_elements) {
  static const auto encode = block::driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  CUtensorMap map;
  const cuuint32_t box[] = {cuuint32_t(channels), cuuint32_t(box_cols), cuuint32_t(box_rows), cuuint32_t(images)};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  const CUresult status = encode(&map, block::element_type<T>, 4, const_cast<T*>(data), batch.sizes, batch.strides, box,
                                 steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(channels),
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(status == CUDA_SUCCESS, "implicit_gemm: the driver refuses a batch, error ", int(status));
  return map;
}

// A map for runs of `count` consecutive output pixels of the whole batch, with 64, 32 or 16 channels of what one tap of
// each pixel reads.
template <class T>
CUtensorMap tap_map(const T* data, const BatchMap& batch, const Axis& rows, const Axis& cols, int count,
                    int channels = block::row_elements) {
  static const auto encode = block::driver_function<decltype(cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
  CUtensorMap map;
  // The first tap reads from `first` to the size plus `last`. Columns come before rows.
  const auto last = [](const Axis& a) { return int((a.out - 1) * a.stride - a.pad - (a.in - 1)); };
  const int first[] = {int(-cols.pad), int(-rows.pad)}, end[] = {last(cols), last(rows)};
  const cuuint32_t steps[] = {1, cuuint32_t(cols.stride), cuuint32_t(rows.stride), 1};
  const CUresult status =
      encode(&map, block::element_type<T>, 4, const_cast<T*>(data), batch.sizes, batch.strides, first, end,
             cuuint32_t(channels), cuuint32_t(count), steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(channels),
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(status == CUDA_SUCCESS, "implicit_gemm: the driver refuses the taps of a batch, error ", int(status));
  return map;
}

// Whether the hardware's limits allow tap_map for this axis.
inline bool has_tap_map(const Axis& a) {
  const int64_t last = (a.out - 1) * a.stride - a.pad - (a.in - 1);
  return a.stride <= 8 && a.pad <= 128 && a.pad >= -127 && last >= -128 && last <= 127 &&
         (a.kernel - 1) * a.dilation <= 255;
}

// ---- the copies; `barrier` waits for their bytes

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

// The same to consecutive pixels, from the given one on, through a map of one tap.
TP_DEVICE inline void store_run(const CUtensorMap& map, int image, int row, int col, int channel, unsigned from) {
#if TP_WGMMA
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
      "r"(channel), "r"(col), "r"(row), "r"(image), "r"(from)
      : "memory");
#endif
}

}  // namespace tp::conv
