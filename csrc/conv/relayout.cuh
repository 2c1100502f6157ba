// Images from one layout to the other. A kernel whose reads want the channels of a pixel side by side, or the pixels of
// a channel, gets them so in a workspace where the caller has them otherwise: one pass over the memory.
#pragma once
#include "conv/elements.h"

namespace tp::conv {

#ifdef __CUDACC__

constexpr int relayout_tile = 64, relayout_threads = 256;

// from[n, groups * channels, pixels], any strides, to packed to[n, pixels, groups, padded]: zeros behind the channels of
// each group.
template <class T>
__global__ void __launch_bounds__(relayout_threads)
    to_channels_last(const T* from, Strides strides, int64_t pixels, int channels, int groups, int padded, T* to) {
  __shared__ T tile[relayout_tile][relayout_tile + 2];
  const int t = int(threadIdx.x), lane = t % relayout_tile, line = t / relayout_tile;
  constexpr int lines = relayout_threads / relayout_tile;
  const int64_t blocks_down = ceil_div(pixels, int64_t(relayout_tile)), first = blockIdx.x % blocks_down * relayout_tile;
  const int64_t image = blockIdx.x / blocks_down;
  const int blocks_across = ceil_div(padded, relayout_tile);
  for (int block = int(blockIdx.y); block < groups * blocks_across; block += int(gridDim.y)) {
    const int group = block / blocks_across, channel = block % blocks_across * relayout_tile;
    const T* const source = from + image * strides.image + group * channels * strides.channel;
    const int64_t pixel = first + lane;
#pragma unroll
    for (int i = line; i < relayout_tile; i += lines) {
      const bool exists = pixel < pixels && channel + i < channels;
      tile[i][lane] = exists ? source[(channel + i) * strides.channel + pixel] : T(0.0f);
    }
    __syncthreads();
    T* const target = to + ((image * pixels + first) * groups + group) * padded + channel;
#pragma unroll
    for (int i = line; i < relayout_tile; i += lines) {
      if (first + i < pixels && channel + lane < padded) target[int64_t(i) * groups * padded + lane] = tile[lane][i];
    }
    __syncthreads();
  }
}

// from[n, pixels, channels] to to[n, channels, pixels].
template <class T>
__global__ void __launch_bounds__(relayout_threads)
    to_channels_first(const T* from, int64_t pixels, int channels, T* to) {
  __shared__ T tile[relayout_tile][relayout_tile + 2];
  const int t = int(threadIdx.x), lane = t % relayout_tile, line = t / relayout_tile;
  constexpr int lines = relayout_threads / relayout_tile;
  const int64_t blocks_down = ceil_div(pixels, int64_t(relayout_tile)), first = blockIdx.x % blocks_down * relayout_tile;
  const int64_t image = blockIdx.x / blocks_down;
  for (int channel = int(blockIdx.y) * relayout_tile; channel < channels; channel += int(gridDim.y) * relayout_tile) {
#pragma unroll
    for (int i = line; i < relayout_tile; i += lines) {
      const bool exists = first + i < pixels && channel + lane < channels;
      tile[i][lane] = exists ? from[(image * pixels + first + i) * channels + channel + lane] : T(0.0f);
    }
    __syncthreads();
#pragma unroll
    for (int i = line; i < relayout_tile; i += lines) {
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

// from[count, channels] to to[count, padded], with zeros behind.
template <class T>
__global__ void __launch_bounds__(relayout_threads)
    pad_channels(const T* from, int64_t count, int channels, int padded, T* to) {
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    for (int c = int(threadIdx.x); c < padded; c += relayout_threads) {
      to[i * padded + c] = c < channels ? from[i * channels + c] : T(0.0f);
    }
  }
}

// A batch as its pixels' channels, each group's padded with zeros to a multiple of `multiple`: as it lies, if it lies
// so and in units of `multiple`, else as a copy.
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
      to_channels_last<<<grid, relayout_threads, 0, stream>>>(from, strides, rows * cols, int(channels), int(groups),
                                                              int(group), to);
    }
    check_launch("relayout");
    data = to;
  }
};

// The same batch map by map.
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

#endif

}  // namespace tp::conv
