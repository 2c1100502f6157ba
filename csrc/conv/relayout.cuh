// Converts images between layouts. A kernel may need the channels of a pixel next to each other, or the pixels of a
// channel; if the caller has the other layout, it gets a copy in a workspace, which takes one pass over the memory.
#pragma once
#include "block/load_store.cuh"
#include "conv/gather.h"

namespace tp::conv {

constexpr int relayout_tile = 64, relayout_threads = 256;

// Copies from[n, groups * channels, pixels], with any strides, to the packed array to[n, pixels, groups, padded], with
// zeros after the channels of each group. A thread reads `width` pixels of a channel at a time, and writes `width`
// channels of a pixel. In between, shared memory holds the tile pixel by pixel.
template <class T, int width>
__global__ void __launch_bounds__(relayout_threads)
    to_channels_last(const T* from, Strides strides, int64_t pixels, int channels, int groups, int padded, T* to) {
  constexpr int tile = relayout_tile, vectors = tile / width, lines = relayout_threads / tile;
  constexpr int pitch = tile + (width > 1 ? 16 / int(sizeof(T)) : 1);
  using V = block::Vector<T, width>;
  __shared__ __align__(16) T values[tile * pitch];
  const int t = int(threadIdx.x), blocks_across = ceil_div(padded, tile);
  int64_t first = blockIdx.x, image = divide(first, ceil_div(pixels, int64_t(tile)));
  first *= tile;
  for (int block = int(blockIdx.y); block < groups * blocks_across; block += int(gridDim.y)) {
    const int group = block / blocks_across, channel = block % blocks_across * tile;
    const T* const source =
        from + image * strides.image + (int64_t(group) * channels + channel + t % tile) * strides.channel + first;
    const bool has_channel = channel + t % tile < channels;
#pragma unroll
    for (int k = 0; k < vectors / lines; ++k) {
      const int pixel = (t / tile + k * lines) * width;
      V v{};
      if (has_channel && first + pixel < pixels) v = *reinterpret_cast<const V*>(source + pixel);
#pragma unroll
      for (int i = 0; i < width; ++i) values[(pixel + i) * pitch + t % tile] = v.v[i];
    }
    __syncthreads();
    T* const target = to + ((image * pixels + first) * groups + group) * padded + channel + t % vectors * width;
#pragma unroll
    for (int k = 0; k < tile * vectors / relayout_threads; ++k) {
      const int pixel = t / vectors + k * (relayout_threads / vectors);
      if (first + pixel >= pixels || channel + t % vectors * width >= padded) continue;
      *reinterpret_cast<V*>(target + int64_t(pixel) * groups * padded) =
          *reinterpret_cast<const V*>(values + pixel * pitch + t % vectors * width);
    }
    __syncthreads();
  }
}

// Copies from[n, pixels, channels] to to[n, channels, pixels].
template <class T>
__global__ void __launch_bounds__(relayout_threads)
    to_channels_first(const T* from, int64_t pixels, int channels, T* to) {
  __shared__ T tile[relayout_tile][relayout_tile + 2];
  const int t = int(threadIdx.x), lane = t % relayout_tile, line = t / relayout_tile;
  constexpr int lines = relayout_threads / relayout_tile;
  const int64_t blocks_down = ceil_div(pixels, int64_t(relayout_tile)),
                first = blockIdx.x % blocks_down * relayout_tile;
  const int64_t image = blockIdx.x / blocks_down;
  for (int channel = int(blockIdx.y) * relayout_tile; channel < channels; channel += int(gridDim.y) * relayout_tile) {
#pragma unroll
    for (int k = 0; k < relayout_tile / lines; ++k) {
      const int i = line + k * lines;
      const bool exists = first + i < pixels && channel + lane < channels;
      tile[i][lane] = exists ? from[(image * pixels + first + i) * channels + channel + lane] : T(0.0f);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < relayout_tile / lines; ++k) {
      const int i = line + k * lines;
      if (channel + i < channels && first + lane < pixels) {
        to[(image * channels + channel + i) * pixels + first + lane] = tile[lane][i];
      }
    }
    __syncthreads();
  }
}

inline dim3 relayout_grid(int64_t n, int64_t pixels, int64_t across) {
  return dim3(unsigned(n * ceil_div(pixels, int64_t(relayout_tile))),
              unsigned(min(max(int64_t(1), across), int64_t(65535))));
}

// Copies from[count, channels] to to[count, padded], with zeros after the channels.
template <class T>
__global__ void __launch_bounds__(relayout_threads)
    pad_channels(const T* from, int64_t count, int channels, int padded, T* to) {
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    for (int c = int(threadIdx.x); c < padded; c += relayout_threads) {
      to[i * padded + c] = c < channels ? from[i * channels + c] : T(0.0f);
    }
  }
}

// A batch with the channels of a pixel next to each other, those of each group padded with zeros to a multiple of
// `multiple`. If the batch already has this layout, it is used as it is; otherwise it is copied.
template <class T>
struct ChannelsLast {
  const T* data;
  int64_t image, row, col, group;  // strides
  ChannelsLast(const T* from, const Strides& strides, int64_t n, int64_t groups, int64_t channels, int64_t rows,
               int64_t cols, int64_t multiple, Context& context)
      : data(from), group(ceil_div(channels, multiple) * multiple) {
    col = groups * group;
    row = cols * col;
    image = rows * row;
    const bool as_it_lies = strides.channel == 1 && group == channels;
    if (as_it_lies && reinterpret_cast<uintptr_t>(from) % (size_t(multiple) * sizeof(T)) == 0) return;
    T* const to = context.workspace<T>(n * image);
    const auto stream = cudaStream_t(context.stream);
    if (strides.channel == 1) {
      const int64_t count = n * rows * cols * groups;
      pad_channels<<<unsigned(min(count, int64_t(1) << 20)), relayout_threads, 0, stream>>>(from, count, int(channels),
                                                                                            int(group), to);
    } else {
      const dim3 grid = relayout_grid(n, rows * cols, groups * ceil_div(group, int64_t(relayout_tile)));
      // Threads read vectors of 16 or 8 bytes, if every channel's pixels begin at a multiple of them.
      constexpr int width = 16 / int(sizeof(T)), half = width / 2;
      const auto fits = [&](int vector) {
        return (rows * cols | group) % vector == 0 &&
               reinterpret_cast<uintptr_t>(from) % (size_t(vector) * sizeof(T)) == 0;
      };
      const auto kernel = fits(width)  ? to_channels_last<T, width>
                          : fits(half) ? to_channels_last<T, half>
                                       : to_channels_last<T, 1>;
      kernel<<<grid, relayout_threads, 0, stream>>>(from, strides, rows * cols, int(channels), int(groups), int(group),
                                                    to);
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
  to_channels_first<<<relayout_grid(n, pixels, ceil_div(channels, int64_t(relayout_tile))), relayout_threads, 0,
                      cudaStream_t(context.stream)>>>(from, pixels, int(channels), to);
  check_launch("relayout");
  return to;
}

}  // namespace tp::conv
