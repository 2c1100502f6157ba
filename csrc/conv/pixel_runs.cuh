// Filters of one pixel (1 x 1, stride 1, no padding) on images that are stored channel by channel (NCHW). All passes
// are products of matrices that are in memory as they are, so nothing is packed or copied to another layout
// (pointwise_wgmma.cuh, pointwise_wgrad.cuh). This file has what they share: how the pixels are divided, and how the
// images are copied to shared memory.
//
// Pixels are divided into runs of 64, which are the rows of a box in shared memory; the other dimension is channels. If
// every channel begins at a multiple of 16 bytes, tensor maps copy boxes, and the last run of an image may extend over
// its end. Otherwise, the threads of a warpgroup copy four pixels at a time, and the runs divide the pixels of the
// whole batch. What a run has beyond the end is zero, and is never stored.
#pragma once
#include "conv/divisor.h"
#include "conv/gather.h"
#include "conv/tensor_map.cuh"

namespace tp::conv {

constexpr int run_pixels = block::row_elements, run_box = 64 * block::row_bytes;  // the bytes of a run of 64 channels
constexpr int pointwise_warps = 8, pointwise_threads = 3 * block::warpgroup, most_pointwise_stages = 8;
// Registers of a multiplying and of a copying thread, and the shared memory for stages.
constexpr int pointwise_registers = 216, pointwise_few_registers = 72, pointwise_memory = 225 * 1024;

// How the pixels of a batch are divided.
struct PixelRuns {
  bool has_boxes;
  int pixels, total, count;  // pixels of an image and of the batch, and the runs
  Divisor by_image;          // runs per image, or pixels if there are no boxes

  PixelRuns(int64_t n, int64_t pixels)
      : has_boxes(pixels % 8 == 0),
        pixels(int(pixels)),
        total(int(n * pixels)),
        count(int(has_boxes ? n * ceil_div(pixels, int64_t(run_pixels)) : ceil_div(n * pixels, int64_t(run_pixels)))),
        by_image(has_boxes ? ceil_div(pixels, int64_t(run_pixels)) : pixels) {}
};

// One batch of images; `boxes` is valid if the runs have boxes.
template <class T>
struct RunSource {
  CUtensorMap boxes;
  const T* data;
  int channels;

  RunSource(const PixelRuns& runs, const T* data, int64_t n, int64_t channels, int64_t box_rows)
      : boxes(runs.has_boxes ? block::planes_map(data, n, channels, runs.pixels, int(box_rows)) : CUtensorMap{}),
        data(data),
        channels(int(channels)) {}
};

// One thread starts to copy a box of a run, from `channel` on; `barrier` waits for its bytes.
template <class T>
TP_DEVICE void copy_box(const PixelRuns& runs, const RunSource<T>& source, int run, int channel, unsigned to,
                        block::Barrier& barrier) {
  const int image = runs.by_image.divide(run);
  block::copy_planes(source.boxes, image, channel, run * run_pixels, to, barrier);
}

// Without boxes: the four pixels of a run that a thread of a warpgroup copies, of every eighth channel.
struct RunVector {
  int image, pixel;
  bool exists;

  TP_DEVICE RunVector(const PixelRuns& runs, int run) {
    pixel = run * run_pixels + int(threadIdx.x) % 16 * 4;
    exists = pixel < runs.total;
    image = runs.by_image.divide(pixel);
  }
  // The first of the channels, and where they are in a swizzled box, in bytes.
  TP_DEVICE static int row() { return int(threadIdx.x) % block::warpgroup / 16; }
  TP_DEVICE static int offset() {
    const int vector = int(threadIdx.x) % 16;
    return row() * block::row_bytes + (vector / 2 * 16 ^ row() * 16) + vector % 2 * 8;
  }
  // The index of these pixels in a batch, for the first of the channels from `channel` on.
  TP_DEVICE int64_t index(const PixelRuns& runs, int channels, int channel) const {
    return exists ? (int64_t(image) * channels + channel + row()) * runs.pixels + pixel : 0;
  }
};

// The threads of a warpgroup start to copy `rows` channels of a run, from `channel` on, to a box. Each must then call
// arrive_after_copies() on the barrier of the stage, and those who wait for it fence_copies().
template <class T>
TP_DEVICE void copy_vectors(const PixelRuns& runs, const RunSource<T>& source, bool exists, int64_t index, int channel,
                            int rows, unsigned to) {
#if TP_WGMMA
  const auto copy = [&](const T* from, int bytes) {  // the rest of the 8 bytes is set to zero
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
    to += 8 * block::row_bytes;
  };
  const T* from = source.data + index;
  const int64_t step = exists ? int64_t(8) * runs.pixels : 0;
  const int existing = min(rows, source.channels - channel);
  to += unsigned(RunVector::offset());
  int row = RunVector::row();
#pragma unroll 8
  for (; row < existing; row += 8, from += step) copy(from, exists ? 8 : 0);
  for (; row < rows; row += 8) copy(source.data, 0);
#endif
}

// Lets products read what other threads have copied, after waiting for it.
TP_DEVICE inline void fence_copies(const PixelRuns& runs) {
  if (!runs.has_boxes) block::publish_shared();
}

// Initializes the barriers of stages: full ones for the copying threads, empty ones for the multiplying warps.
TP_DEVICE inline void init_stages(const PixelRuns& runs, block::Barrier* full, block::Barrier* empty, int stages) {
  for (int i = 0; i < stages; ++i) {
    full[i].init(runs.has_boxes ? 1 : block::warpgroup);
    empty[i].init(pointwise_warps);
  }
}

// ---- the host's part

// Whether the filters have one pixel, and the hardware can copy the arrays if they are aligned().
inline bool is_pointwise(const Strides& strides, int64_t n, int64_t groups, int64_t channels, const Axis& rows,
                         const Axis& cols) {
  const auto moves_by_one = [](const Axis& a) { return a.kernel == 1 && a.stride == 1 && a.pad == 0; };
  const int64_t pixels = rows.in * cols.in;
  return groups == 1 && moves_by_one(rows) && moves_by_one(cols) && strides.channel == pixels && pixels % 4 == 0 &&
         n * pixels < dividend_limit && channels % 8 == 0;
}

}  // namespace tp::conv
