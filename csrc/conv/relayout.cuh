// Converts images between layouts. A kernel may need the channels of a pixel next to each other, or the pixels of a
// channel; if the caller has the other layout, it gets a copy in a workspace, which takes one pass over the memory.
#pragma once
#include "block/load_store.cuh"
#include "conv/gather.h"

namespace tp::conv {

constexpr int relayout_tile = 64, relayout_threads = 256;
// A row of so many vectors of channels, and so few channels, are written by one thread per vector or pixel: tiles would
// be mostly empty.
constexpr int few_vectors = 2, few_channels_limit = 16;
constexpr int pixels_at_once = 4;  // by a thread of pad_channels

// Transposes matrices: copies from[n, groups * lines, columns] to to[n, columns, groups, padded], with zeros after the
// lines of each group. Lines are channels and columns pixels, or the other way round. The columns of a line are
// contiguous; other strides are given. A thread reads `width` columns of a line at a time, and writes `width` lines of
// a column. In between, shared memory holds the tile column by column.
template <class T, int width>
__global__ void __launch_bounds__(relayout_threads)
    transpose_images(const T* from, int64_t image_stride, int64_t line_stride, int64_t columns, int64_t lines,
                     int groups, int64_t padded, T* to) {
  constexpr int tile = relayout_tile, vectors = tile / width, step = relayout_threads / tile;
  constexpr int pitch = tile + (width > 1 ? 16 / int(sizeof(T)) : 1);
  using V = block::Vector<T, width>;
  __shared__ __align__(16) T values[tile * pitch];
  const int t = int(threadIdx.x), blocks_across = int(ceil_div(padded, int64_t(tile)));
  int64_t first = blockIdx.x, image = divide(first, ceil_div(columns, int64_t(tile)));
  first *= tile;
  for (int block = int(blockIdx.y); block < groups * blocks_across; block += int(gridDim.y)) {
    const int group = block / blocks_across;
    const int64_t line = int64_t(block % blocks_across) * tile;
    const T* const source = from + image * image_stride + (group * lines + line + t % tile) * line_stride + first;
    const bool has_line = line + t % tile < lines;
#pragma unroll
    for (int k = 0; k < vectors / step; ++k) {
      const int column = (t / tile + k * step) * width;
      V v{};
      if (has_line && first + column < columns) v = *reinterpret_cast<const V*>(source + column);
#pragma unroll
      for (int i = 0; i < width; ++i) values[(column + i) * pitch + t % tile] = v.v[i];
    }
    __syncthreads();
    T* const target = to + ((image * columns + first) * groups + group) * padded + line + t % vectors * width;
#pragma unroll
    for (int k = 0; k < tile * vectors / relayout_threads; ++k) {
      const int column = t / vectors + k * (relayout_threads / vectors);
      if (first + column >= columns || line + t % vectors * width >= padded) continue;
      *reinterpret_cast<V*>(target + column * (groups * padded)) =
          *reinterpret_cast<const V*>(values + column * pitch + t % vectors * width);
    }
    __syncthreads();
  }
}

template <class T>
void launch_transpose(const T* from, int64_t n, int64_t image_stride, int64_t line_stride, int64_t columns,
                      int64_t lines, int64_t groups, int64_t padded, T* to, Context& context) {
  // Threads read vectors of 16 or 8 bytes, if every line begins at a multiple of them.
  constexpr int width = 16 / int(sizeof(T)), half = width / 2;
  const auto fits = [&](int vector) {
    return (columns | line_stride | image_stride | padded) % vector == 0 &&
           reinterpret_cast<uintptr_t>(from) % (size_t(vector) * sizeof(T)) == 0;
  };
  const auto kernel = fits(width)  ? transpose_images<T, width>
                      : fits(half) ? transpose_images<T, half>
                                   : transpose_images<T, 1>;
  const int64_t across = groups * ceil_div(padded, int64_t(relayout_tile));
  const dim3 grid(unsigned(n * ceil_div(columns, int64_t(relayout_tile))), unsigned(min(across, int64_t(65535))));
  kernel<<<grid, relayout_threads, 0, cudaStream_t(context.stream)>>>(from, image_stride, line_stride, columns, lines,
                                                                      int(groups), padded, to);
}

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

// A batch with the channels of a pixel next to each other, those of each group padded with zeros to vectors of 16
// bytes. If the batch already has this layout, it is used as it is; otherwise it is copied.
template <class T>
struct ChannelsLast {
  const T* data;
  int64_t image, row, col, group;  // strides
  ChannelsLast(const T* from, const Strides& strides, int64_t n, int64_t groups, int64_t channels, int64_t rows,
               int64_t cols, Context& context)
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
      launch_transpose(from, n, strides.image, strides.channel, rows * cols, channels, groups, group, to, context);
    }
    check_launch("relayout");
    data = to;
  }
};

// Returns the same batch map by map, as a copy if needed.
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
    launch_transpose(from, n, strides.image, channels, channels, pixels, 1, pixels, to, context);
  }
  check_launch("relayout");
  return to;
}

}  // namespace tp::conv
