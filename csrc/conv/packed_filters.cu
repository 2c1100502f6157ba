#include "conv/packed_filters.h"
#ifdef __CUDACC__
#include "block/launch.cuh"
#include "core/division.h"

namespace tp::conv {
namespace {

constexpr int pack_threads = 256, pack_taps = 9;

// A thread copies all taps of one channel and map, which are contiguous.
template <class T>
__global__ void __launch_bounds__(pack_threads)
    copy_filters(const Gather<T> g, bool by_map, int64_t width, T* packed, int* odd) {
  block::allow_next_launch();
  const int64_t lines = by_map ? g.maps : g.depth, taps = g.rows.kernel * g.cols.kernel;
  bool found = false;
  for (int64_t i = int64_t(blockIdx.x) * pack_threads + threadIdx.x; i < g.groups * lines * width;
       i += int64_t(gridDim.x) * pack_threads) {
    int64_t column = i, line = divide(column, width), group = divide(line, lines);
    const int64_t map = by_map ? line : column, c = by_map ? column : line;
    const bool exists = map < g.maps && c < g.depth;
    const T* const from = g.weight + (exists ? g.weight_at(group, map, c, 0, 0) : 0);
    T* const to = packed + (group * taps * lines + line) * width + column;
    for (int64_t first = 0; first < taps; first += pack_taps) {
      T values[pack_taps];  // loaded before any is stored
#pragma unroll
      for (int k = 0; k < pack_taps; ++k) {
        values[k] = exists && first + k < taps ? from[(first + k) * g.tap_stride] : T(0.0f);
      }
#pragma unroll
      for (int k = 0; k < pack_taps; ++k) {
        found = found || !is_finite(acc_t<T>(values[k]));
        if (first + k < taps) to[(first + k) * lines * width] = values[k];
      }
    }
  }
  found = __syncthreads_or(found);
  if (threadIdx.x == 0) odd[blockIdx.x] = found;
}

// The same for dgrad by map, where the rows to write are columns of the matrix [maps of conv2d, its taps and channels]
// that the filters are in memory: shared memory holds a tile of it.
template <class T>
__global__ void __launch_bounds__(pack_threads)
    transpose_filters(const Gather<T> g, int64_t width, T* packed, int* odd) {
  block::allow_next_launch();
  constexpr int lines = 64, columns = 32;
  __shared__ T tile[columns][lines + 2];
  const int64_t taps = g.rows.kernel * g.cols.kernel, length = g.maps * taps,
                across = ceil_div(length, int64_t(columns)), down = ceil_div(width, int64_t(lines));
  const int t = int(threadIdx.x);
  bool found = false;
  for (int64_t i = blockIdx.x; i < g.groups * down * across; i += gridDim.x) {
    int64_t column = i, line = divide(column, across), group = divide(line, down);
    column *= columns, line *= lines;
#pragma unroll
    for (int k = t; k < lines * columns; k += pack_threads) {
      const int64_t depth = line + k / columns, at = column + k % columns;
      const bool exists = depth < g.depth && at < length;
      const T value = exists ? g.weight[group * g.group_stride + depth * length + at] : T(0.0f);
      found = found || !is_finite(acc_t<T>(value));
      tile[k % columns][k / columns] = value;
    }
    __syncthreads();
#pragma unroll
    for (int k = t; k < lines * columns; k += pack_threads) {
      int64_t at = column + k / lines;
      const int64_t depth = line + k % lines;
      if (at >= length || depth >= width) continue;
      if (g.tap_stride == 1) {  // taps are neighbours; the result has a matrix per tap
        const int64_t map = divide(at, taps);
        at = at * g.maps + map;
      }
      packed[(group * length + at) * width + depth] = tile[k / lines][k % lines];
    }
    __syncthreads();
  }
  found = __syncthreads_or(found);
  if (t == 0) odd[blockIdx.x] = found;
}

}  // namespace

template <class T>
void pack_filters(const Gather<T>& g, bool by_map, int64_t width, T* packed, int* odd, Context& context) {
  const auto stream = cudaStream_t(context.stream);
  if (by_map && g.pass == Pass::dgrad) {
    transpose_filters<<<pack_blocks, pack_threads, 0, stream>>>(g, width, packed, odd);
  } else {
    copy_filters<<<pack_blocks, pack_threads, 0, stream>>>(g, by_map, width, packed, odd);
  }
  check_launch("pack_filters");
}

template void pack_filters(const Gather<half>&, bool, int64_t, half*, int*, Context&);
template void pack_filters(const Gather<bfloat16>&, bool, int64_t, bfloat16*, int*, Context&);
template void pack_filters(const Gather<float>&, bool, int64_t, float*, int*, Context&);
template void pack_filters(const Gather<double>&, bool, int64_t, double*, int*, Context&);

}  // namespace tp::conv
#endif
