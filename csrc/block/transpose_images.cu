#include "block/transpose_images.h"
#ifdef __CUDACC__
#include "block/load_store.cuh"
#include "core/division.h"
#include "core/simt_check.h"

namespace tp::block {
namespace {

constexpr int tile = 64, threads = 256;

// A thread reads `width` columns of a line at a time, and writes `width` lines of a column. In between, shared memory
// holds the tile column by column.
template <class T, int width>
__global__ void __launch_bounds__(threads) transpose_kernel(const T* from, const Images images, T* to) {
  constexpr int vectors = tile / width, step = threads / tile;
  constexpr int pitch = tile + (width > 1 ? 16 / int(sizeof(T)) : 1);
  using V = Vector<T, width>;
  __shared__ __align__(16) T values[tile * pitch];
  const int64_t columns = images.columns, lines = images.lines, padded = images.padded;
  const int t = int(threadIdx.x), groups = int(images.groups), blocks_across = int(ceil_div(padded, int64_t(tile)));
  const int64_t tiles = ceil_div(columns, int64_t(tile)), image = quotient(blockIdx.x, tiles),
                first = (blockIdx.x - image * tiles) * tile;
  for (int block = int(blockIdx.y); block < groups * blocks_across; block += int(gridDim.y)) {
    const int group = block / blocks_across;
    const int64_t line = int64_t(block % blocks_across) * tile;
    const T* const source =
        from + image * images.image_stride + (group * lines + line + t % tile) * images.line_stride + first;
    const bool has_line = line + t % tile < lines;
    V v[vectors / step] = {};  // loaded before any is stored, so that all loads are in flight at once
#pragma unroll
    for (int k = 0; k < vectors / step; ++k) {
      const int column = (t / tile + k * step) * width;
      if (has_line && first + column < columns) v[k] = *reinterpret_cast<const V*>(source + column);
    }
#pragma unroll
    for (int k = 0; k < vectors / step; ++k) {
#pragma unroll
      for (int i = 0; i < width; ++i) values[((t / tile + k * step) * width + i) * pitch + t % tile] = v[k].v[i];
    }
    __syncthreads();
    T* const target = to + ((image * columns + first) * groups + group) * padded + line + t % vectors * width;
#pragma unroll
    for (int k = 0; k < tile * vectors / threads; ++k) {
      const int column = t / vectors + k * (threads / vectors);
      if (first + column >= columns || line + t % vectors * width >= padded) continue;
      *reinterpret_cast<V*>(target + column * (groups * padded)) =
          *reinterpret_cast<const V*>(values + column * pitch + t % vectors * width);
    }
    __syncthreads();
  }
}

template <class T>
void launch(const T* from, const Images& images, T* to, Context& context) {
  // Threads read vectors of 16 or 8 bytes, if every line begins at a multiple of them.
  constexpr int width = 16 / int(sizeof(T)), half_width = width / 2;
  const auto fits = [&](int vector) {
    return (images.columns | images.line_stride | images.image_stride | images.padded) % vector == 0 &&
           reinterpret_cast<uintptr_t>(from) % (size_t(vector) * sizeof(T)) == 0;
  };
  const auto kernel = fits(width)        ? transpose_kernel<T, width>
                      : fits(half_width) ? transpose_kernel<T, half_width>
                                         : transpose_kernel<T, 1>;
  const int64_t tiles = images.n * ceil_div(images.columns, int64_t(tile)),
                across = images.groups * ceil_div(images.padded, int64_t(tile));
  require(tiles <= max_grid, "transpose_images: ", tiles, " tiles are too many for one launch");
  const dim3 grid(unsigned(tiles), unsigned(min(across, int64_t(65535))));
  kernel<<<grid, threads, 0, cudaStream_t(context.stream)>>>(from, images, to);
  check_launch("transpose_images");
}

}  // namespace

void transpose_images(const void* from, const Images& images, void* to, size_t size, Context& context) {
  const auto as = [&](auto word) {
    using T = decltype(word);
    launch(static_cast<const T*>(from), images, static_cast<T*>(to), context);
  };
  switch (size) {
    case 1:
      return as(uint8_t());
    case 2:
      return as(uint16_t());
    case 4:
      return as(uint32_t());
    default:
      return as(uint64_t());
  }
}

}  // namespace tp::block
#endif
