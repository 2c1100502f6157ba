// The kernels of register_tiled for any stride, dilation, padding and filter size. Tiles of pixels by maps are in
// registers; everything else is read through the caches.
#pragma once
#include "block/slices.h"
#include "block/warp.cuh"
#include "conv/divisor.h"
#include "conv/gather.h"

namespace tp::conv {

constexpr int pixel_threads = 128, pixels_per_thread = 4, maps_per_thread = 4, taps_per_thread = 4;

// How fprop and dgrad are divided into blocks: `tiles` tiles of the pixels of each phase, for each set of maps of a
// group.
template <class T>
struct PixelTiles {
  Gather<T> g;
  int64_t row_phases, col_phases, tiles, map_blocks;

  explicit PixelTiles(const Gather<T>& g)
      : g(g),
        row_phases(phases(g.rows, g.pass)),
        col_phases(phases(g.cols, g.pass)),
        tiles(ceil_div(g.n * phase_outputs(g.rows, g.pass) * phase_outputs(g.cols, g.pass),
                       int64_t(pixel_threads * pixels_per_thread))),
        map_blocks(ceil_div(g.maps, int64_t(maps_per_thread))) {}
  TP_HD int64_t blocks() const { return row_phases * col_phases * tiles * map_blocks * g.groups; }
};

// Adds the products of one tap of one channel. offset[j] is the offset of pixel j in the source, if bit j of `inside`
// is set.
template <class A, class T>
TP_DEVICE void add_tap(const T* source, const int64_t (&offset)[pixels_per_thread], unsigned inside, bool pads,
                       const T* weight, int64_t map_stride, int maps, A (&sum)[pixels_per_thread][maps_per_thread]) {
  A weights[maps_per_thread];
#pragma unroll
  for (int m = 0; m < maps_per_thread; ++m) weights[m] = m < maps ? A(weight[m * map_stride]) : A(0);
#pragma unroll
  for (int j = 0; j < pixels_per_thread; ++j) {
    const bool exists = inside >> j & 1;
    const A value = exists ? A(source[offset[j]]) : A(0);
    if (!exists && !pads) continue;  // dgrad: there is no such product, which matters if the weight is infinite
#pragma unroll
    for (int m = 0; m < maps_per_thread; ++m) sum[j][m] += weights[m] * value;
  }
}

template <class T>
TP_DEVICE void gather_tile(const Gather<T>& g, const GatherAxis& rows, const GatherAxis& cols, int64_t group,
                           int64_t map, int64_t first) {
  using A = acc_t<T>;
  const int64_t count = g.n * rows.outputs * cols.outputs;
  const int maps = int(min(g.maps - map, int64_t(maps_per_thread)));
  PhasePixel at[pixels_per_thread];
  A sum[pixels_per_thread][maps_per_thread] = {};
// Find the pixels of this thread.
#pragma unroll
  for (int j = 0; j < pixels_per_thread; ++j) {
    const int64_t i = first + j * pixel_threads + int64_t(threadIdx.x);
    at[j] = i < count ? phase_pixel(i, rows, cols) : PhasePixel{-1, 0, 0};
  }
  // Add tap by tap, for all channels: first find what the tap reads for each pixel.
  for (int64_t p = 0; p < rows.taps; ++p) {
    for (int64_t q = 0; q < cols.taps; ++q) {
      int64_t offset[pixels_per_thread];
      unsigned inside = 0;
#pragma unroll
      for (int j = 0; j < pixels_per_thread; ++j) {
        const int64_t h = rows.source(at[j].h, p), w = cols.source(at[j].w, q);
        const bool exists = at[j].image >= 0 && rows.inside(h) && cols.inside(w);
        inside |= unsigned(exists) << j;
        offset[j] = exists ? g.source_strides.at(at[j].image, group * g.depth, h, w) : 0;
      }
      const T *source = g.source, *weight = g.weight + g.weight_at(group, map, 0, rows.tap(p), cols.tap(q));
      for (int64_t c = 0; c < g.depth; ++c, source += g.source_strides.channel, weight += g.depth_stride) {
        add_tap(source, offset, inside, g.pass == Pass::fprop, weight, g.map_stride, maps, sum);
      }
    }
  }
// Add the bias and store the sums.
#pragma unroll
  for (int m = 0; m < maps_per_thread; ++m) {
    if (m >= maps) break;
    const A shift = g.bias ? A(g.bias[group * g.maps + map + m]) : A(0);
#pragma unroll
    for (int j = 0; j < pixels_per_thread; ++j) {
      if (at[j].image < 0) continue;
      g.target[g.target_strides.at(at[j].image, group * g.maps + map + m, rows.target(at[j].h), cols.target(at[j].w))] =
          T(sum[j][m] + shift);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(pixel_threads) gather_tiles(const PixelTiles<T> work) {
  const Gather<T>& g = work.g;
  for (int64_t block = blockIdx.x; block < work.blocks(); block += gridDim.x) {
    int64_t map_block = block, group = divide(map_block, work.map_blocks), tile = divide(group, g.groups),
            col_phase = divide(tile, work.tiles), row_phase = divide(col_phase, work.col_phases);
    gather_tile(g, gather_axis(g.rows, g.pass, row_phase), gather_axis(g.cols, g.pass, col_phase), group,
                map_block * maps_per_thread, tile * pixel_threads * pixels_per_thread);
  }
}

template <class T>
void launch_gather_tiles(const Gather<T>& g, Context& context) {
  const PixelTiles<T> work(g);
  const int64_t blocks = min(work.blocks(), max_grid);
  gather_tiles<<<unsigned(blocks), pixel_threads, 0, cudaStream_t(context.stream)>>>(work);
  check_launch("register_tiled");
}

// ---- wgrad: a block computes `maps_per_thread` maps by `taps_per_thread` taps over one slice of the pixels

template <class T>
struct TapTiles {
  Elements<T> e;
  int64_t map_blocks, tap_blocks, slices;
  acc_t<T>* sums;  // [slices][filters in their order in memory]
  TP_HD int64_t depth() const { return e.channels * e.taps(); }
  TP_HD int64_t filter_blocks() const { return map_blocks * tap_blocks * e.groups; }
};

// What a tap reads, relative to its pixel.
struct TapOffset {
  int64_t channel, i, j;
};

template <class T>
TP_DEVICE void tap_tile(const TapTiles<T>& work, int64_t group, int64_t map, int64_t tap, int64_t slice,
                        acc_t<T> (&sum)[maps_per_thread][taps_per_thread]) {
  using A = acc_t<T>;
  const Elements<T>& e = work.e;
  const int64_t pixels = e.n * e.rows.out * e.cols.out, end = (slice + 1) * pixels / work.slices;
  TapOffset taps[taps_per_thread];
#pragma unroll
  for (int k = 0; k < taps_per_thread; ++k) {
    int64_t q = min(tap + k, work.depth() - 1), p = divide(q, e.cols.kernel), c = divide(p, e.rows.kernel);
    taps[k] = {group * e.channels + c, p * e.rows.dilation - e.rows.pad, q * e.cols.dilation - e.cols.pad};
  }
  for (int64_t pixel = slice * pixels / work.slices + int64_t(threadIdx.x); pixel < end; pixel += pixel_threads) {
    int64_t w = pixel, h = divide(w, e.cols.out), image = divide(h, e.rows.out);
    A gradient[maps_per_thread];
#pragma unroll
    for (int m = 0; m < maps_per_thread; ++m) {
      gradient[m] = map + m < e.maps ? A(e.y[e.y_at(image, group * e.maps + map + m, h, w)]) : A(0);
    }
#pragma unroll
    for (int k = 0; k < taps_per_thread; ++k) {
      const int64_t i = h * e.rows.stride + taps[k].i, j = w * e.cols.stride + taps[k].j;
      const bool exists = i >= 0 && i < e.rows.in && j >= 0 && j < e.cols.in;
      const A value = exists ? A(e.x[e.x_at(image, taps[k].channel, i, j)]) : A(0);
#pragma unroll
      for (int m = 0; m < maps_per_thread; ++m) sum[m][k] += gradient[m] * value;
    }
  }
}

template <class T>
__global__ void __launch_bounds__(pixel_threads) wgrad_tiles(const TapTiles<T> work) {
  using A = acc_t<T>;
  constexpr int warps = pixel_threads / block::warp_size;
  __shared__ A pool[warps][maps_per_thread * taps_per_thread];
  const Elements<T>& e = work.e;
  const int t = int(threadIdx.x);
  for (int64_t block = blockIdx.x; block < work.filter_blocks() * work.slices; block += gridDim.x) {
    int64_t tap = block, map = divide(tap, work.tap_blocks), group = divide(map, work.map_blocks),
            slice = divide(group, e.groups);
    tap *= taps_per_thread;
    map *= maps_per_thread;
    A sum[maps_per_thread][taps_per_thread] = {};
    tap_tile(work, group, map, tap, slice, sum);
#pragma unroll
    for (int i = 0; i < maps_per_thread * taps_per_thread; ++i) {
      const A total = block::reduce<Sum<A>>(sum[i / taps_per_thread][i % taps_per_thread]);
      if (t % block::warp_size == 0) pool[t / block::warp_size][i] = total;
    }
    __syncthreads();
    const int64_t m = map + t / taps_per_thread, k = tap + t % taps_per_thread;
    if (t < maps_per_thread * taps_per_thread && m < e.maps && k < work.depth()) {
      A total = 0;
      for (int w = 0; w < warps; ++w) total += pool[w][t];
      work.sums[slice * e.weights() + (group * e.maps + m) * work.depth() + k] = total;
    }
    __syncthreads();
  }
}

template <class T>
void launch_wgrad_tiles(const Elements<T>& e, Context& context) {
  // `enough` blocks keep an H200 busy; another block is worth its overhead from `least_pixels` pixels on.
  constexpr int64_t enough = 1056, least_pixels = 4 * pixel_threads;
  const int64_t pixels = e.n * e.rows.out * e.cols.out;
  TapTiles<T> work{e, ceil_div(e.maps, int64_t(maps_per_thread)),
                   ceil_div(e.channels * e.taps(), int64_t(taps_per_thread)), 1, nullptr};
  work.slices = max(int64_t(1), min(enough / work.filter_blocks(), pixels / least_pixels));
  work.sums = context.workspace<acc_t<T>>(work.slices * e.weights());
  const int64_t blocks = min(work.filter_blocks() * work.slices, max_grid);
  wgrad_tiles<<<unsigned(blocks), pixel_threads, 0, cudaStream_t(context.stream)>>>(work);
  check_launch("register_tiled");
  block::sum_slices(work.sums, work.slices, e.weights(), e.weight, context);
}

}  // namespace tp::conv
