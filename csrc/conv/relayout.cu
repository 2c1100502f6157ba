#include "conv/relayout.h"
#ifdef __CUDACC__
#include "block/load_store.cuh"
#include "block/transpose_images.h"

namespace tp::conv {
namespace {

constexpr int relayout_threads = 256;
// A row of so many vectors of channels, and so few channels, are written by one thread per vector or pixel: tiles would
// be mostly empty.
constexpr int few_vectors = 2, few_channels_limit = 16;
constexpr int pixels_at_once = 4;  // by a thread of pad_channels

// Copies from[n, pixels, channels] to to[n, channels, pixels]. This is for few channels: a thread has a pixel, and what
// a warp reads for its first channel brings the others to the cache.
template <class T>
__global__ void __launch_bounds__(relayout_threads)
    few_channels_first(const T* from, int64_t n, int64_t pixels, int channels, T* to) {
  for (int64_t i = int64_t(blockIdx.x) * relayout_threads + threadIdx.x; i < n * pixels;
       i += int64_t(gridDim.x) * relayout_threads) {
    int64_t pixel = i, image = divide(pixel, pixels);
    for (int channel = 0; channel < channels; ++channel) {
      to[(image * channels + channel) * pixels + pixel] = from[i * channels + channel];
    }
  }
}

// Copies the channels of each pixel and of group blockIdx.y to a row of `padded` elements, with zeros after the
// channels. A thread writes one vector of `width` elements; threadIdx.x counts the vectors of a row, and threadIdx.y
// the pixels. This is for rows of few vectors: neighbouring threads have neighbouring pixels, so that they read whole
// sectors from images in either layout.
template <class T, int width>
__global__ void __launch_bounds__(relayout_threads)
    pad_channels(const T* from, int64_t image_stride, int64_t pixel_stride, int64_t channel_stride, int64_t n,
                 int64_t pixels, int channels, int padded, T* to) {
  using V = block::Vector<T, width>;
  const int64_t block_pixels = int64_t(blockDim.y) * pixels_at_once;
  for (int64_t begin = blockIdx.x * block_pixels + threadIdx.y; begin < n * pixels; begin += gridDim.x * block_pixels) {
    for (int first = int(threadIdx.x) * width; first < padded; first += int(blockDim.x) * width) {
      V v[pixels_at_once] = {};  // loaded before any is stored
#pragma unroll
      for (int u = 0; u < pixels_at_once; ++u) {
        int64_t pixel = begin + u * int(blockDim.y), image = 0;
        if (pixel >= n * pixels) break;
        if (n > 1) image = divide(pixel, pixels);
        const T* const source = from + image * image_stride + pixel * pixel_stride +
                                (int64_t(blockIdx.y) * channels + first) * channel_stride;
#pragma unroll
        for (int k = 0; k < width; ++k) {
          if (first + k < channels) v[u].v[k] = source[k * channel_stride];
        }
      }
#pragma unroll
      for (int u = 0; u < pixels_at_once; ++u) {
        const int64_t i = begin + u * int(blockDim.y);
        if (i < n * pixels) *reinterpret_cast<V*>(to + (i * gridDim.y + blockIdx.y) * padded + first) = v[u];
      }
    }
  }
}

}  // namespace

template <class T>
ChannelsLast<T>::ChannelsLast(const T* from, const Strides& strides, int64_t n, int64_t groups, int64_t channels,
                              int64_t rows, int64_t cols, Context& context)
    : data(from) {
  constexpr int width = 16 / int(sizeof(T));
  group = ceil_div(channels, int64_t(width)) * width;
  col = groups * group;
  row = cols * col;
  image = rows * row;
  const bool as_it_lies = strides.channel == 1 && group == channels;
  if (as_it_lies && reinterpret_cast<uintptr_t>(from) % 16 == 0) return;
  T* const to = context.workspace<T>(n * image);
  const auto stream = cudaStream_t(context.stream);
  const bool one_run = strides.channel == 1;  // the groups of all pixels follow one another
  if (one_run || (group <= few_vectors * width && groups <= 65535)) {
    const int64_t images = one_run ? 1 : n, pixels = (one_run ? n * groups : 1) * rows * cols;
    const auto vectors = unsigned(min(group / int64_t(width), int64_t(relayout_threads)));
    const dim3 threads(vectors, relayout_threads / vectors);
    const auto blocks = unsigned(min(ceil_div(images * pixels, int64_t(threads.y) * pixels_at_once), max_grid));
    pad_channels<T, width><<<dim3(blocks, one_run ? 1 : unsigned(groups)), threads, 0, stream>>>(
        from, strides.image, one_run ? channels : 1, strides.channel, images, pixels, int(channels), int(group), to);
  } else {
    const block::Images images{n, groups, channels, rows * cols, strides.image, strides.channel, group};
    block::transpose_images(from, images, to, sizeof(T), context);
  }
  check_launch("relayout");
  data = to;
}

template <class T>
const T* channels_first(const T* from, const Strides& strides, int64_t n, int64_t channels, int64_t pixels,
                        Context& context) {
  if (strides.channel == pixels) return from;
  T* const to = context.workspace<T>(n * channels * pixels);
  if (channels < few_channels_limit) {
    const auto blocks = unsigned(min(ceil_div(n * pixels, int64_t(relayout_threads)), max_grid));
    few_channels_first<<<blocks, relayout_threads, 0, cudaStream_t(context.stream)>>>(from, n, pixels, int(channels),
                                                                                      to);
  } else {
    block::transpose_images(from, {n, 1, pixels, channels, strides.image, channels, pixels}, to, sizeof(T), context);
  }
  check_launch("relayout");
  return to;
}

template struct ChannelsLast<half>;
template struct ChannelsLast<bfloat16>;
template struct ChannelsLast<float>;
template struct ChannelsLast<double>;
template const half* channels_first(const half*, const Strides&, int64_t, int64_t, int64_t, Context&);
template const bfloat16* channels_first(const bfloat16*, const Strides&, int64_t, int64_t, int64_t, Context&);
template const float* channels_first(const float*, const Strides&, int64_t, int64_t, int64_t, Context&);
template const double* channels_first(const double*, const Strides&, int64_t, int64_t, int64_t, Context&);

}  // namespace tp::conv
#endif
