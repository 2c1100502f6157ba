// The implicit matrix product of fprop and dgrad on the CUDA cores, in true float32 or double.
//
// The source lies map by map, so that neighbouring pixels of one channel are neighbours in memory: column k of the left
// tile is read by consecutive threads from consecutive addresses. A slab of `slab` channels of both factors is copied
// to shared memory while the products of the slab before are computed from there. A thread keeps `side` x `side` sums
// in registers and reads 2 * side values for side * side products.
#pragma once
#include "conv/gather_gemm.cuh"
#include "conv/strips.cuh"

namespace tp::conv {

// How the product of accumulators A is cut: tiles of `pixels` x `maps`, for blocks of `threads`.
template <class A, int maps_>
struct FmaTile {
  static constexpr bool wide = sizeof(A) == 8;
  static constexpr int pixels = wide ? 64 : 128, maps = maps_, side = wide ? 4 : 8, slab = wide ? 8 : 16, stages = 3;
  static constexpr int threads = pixels / side * maps / side;
  static constexpr int quads = side / 4, pixel_lanes = pixels / side, map_lanes = maps / side;
  static constexpr int stage_values = slab * (pixels + maps);
};

template <class T, class Tile>
class FmaLoader {
  static constexpr int vector = 16 / int(sizeof(T)), across = Tile::maps / vector;  // of the filters
  static constexpr int lines = Tile::threads / Tile::pixels, filter_lines = Tile::threads / across;

 public:
  TP_DEVICE FmaLoader(const GatherGemm<T>& work, const GatherShare& share, const GatherPixel* pixels)
      : work_(work),
        row_(work.source, pixels[pixel()]),
        tap_(work, share),
        filters_(work.filters + share.group * work.g.rows.kernel * work.g.cols.kernel * work.g.depth * work.width +
                 share.map + filter_map()),
        has_map_(share.map + filter_map() < work.width) {
    begin_tap();
  }

  // Begins to copy the next slab of both factors.
  TP_DEVICE void load(T* stage) {
    const int depth = int(work_.g.depth) - channel_;
    const T* from = source_;
#pragma unroll
    for (int i = 0; i < Tile::slab / lines; ++i) {
      copy_or_zero<sizeof(T)>(stage + (line() + i * lines) * Tile::pixels + pixel(), from,
                              inside_ && line() + i * lines < depth);
      from += lines * work_.channel;
    }
    T* const to = stage + Tile::slab * Tile::pixels + filter_line() * Tile::maps + filter_map();
#pragma unroll
    for (int i = 0; i < Tile::slab / filter_lines; ++i) {
      copy_or_zero<16>(to + i * filter_lines * Tile::maps, filter_ + i * filter_lines * work_.width,
                       has_map_ && filter_line() + i * filter_lines < depth);
    }
    if (tap_.next()) channel_ += Tile::slab;
    begin_tap();
  }

 private:
  TP_DEVICE static int pixel() { return int(threadIdx.x) % Tile::pixels; }
  TP_DEVICE static int line() { return int(threadIdx.x) / Tile::pixels; }
  TP_DEVICE static int filter_map() { return int(threadIdx.x) % across * vector; }
  TP_DEVICE static int filter_line() { return int(threadIdx.x) / across; }
  TP_DEVICE void begin_tap() {
    inside_ = tap_.inside(row_.h, row_.w);
    source_ = row_.origin + tap_.offset(work_) + (channel_ + line()) * work_.channel;
    filter_ = filters_ + (int64_t(tap_.filter()) * work_.g.depth + channel_ + filter_line()) * work_.width;
  }

  const GatherGemm<T>& work_;
  const GatherRow<T> row_;
  TapWalk<T> tap_;
  const T* filters_;
  const bool has_map_;
  const T *source_, *filter_;  // of this thread, for the next slab
  int channel_ = 0;
  bool inside_;
};

template <class Tile, class T>
TP_DEVICE void add_slab(const T* stage, T (&sum)[Tile::side][Tile::side]) {
  const int lane = int(threadIdx.x) % Tile::pixel_lanes, line = int(threadIdx.x) / Tile::pixel_lanes;
  const T *const left = stage + lane * 4, *const right = stage + Tile::slab * Tile::pixels + line * 4;
  constexpr int vector = 16 / int(sizeof(T)) < 4 ? 2 : 4;
#pragma unroll
  for (int k = 0; k < Tile::slab; ++k) {
    T a[Tile::quads][4], b[Tile::quads][4];
#pragma unroll
    for (int i = 0; i < Tile::quads; ++i) {
      load_strip<vector>(left + k * Tile::pixels + i * Tile::pixel_lanes * 4, a[i]);
      load_strip<vector>(right + k * Tile::maps + i * Tile::map_lanes * 4, b[i]);
    }
#pragma unroll
    for (int i = 0; i < Tile::side; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::side; ++j) sum[i][j] += a[i / 4][i % 4] * b[j / 4][j % 4];
    }
  }
}

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, 512 / Tile::threads)
    gather_fma(const __grid_constant__ GatherGemm<T> work) {
  extern __shared__ __align__(16) unsigned char pool[];
  T* const stages = reinterpret_cast<T*>(pool);
  __shared__ GatherShare share;
  if (threadIdx.x == 0) share = gather_share(work, blockIdx.x, Tile::pixels, Tile::maps);
  __syncthreads();
  if (has_odd_weights(work)) return store_plain_share(work, share, Tile::pixels, Tile::maps);
  const int slabs = int(share.rows.taps * share.cols.taps * ceil_div(work.g.depth, int64_t(Tile::slab)));
  __shared__ GatherPixel pixels[Tile::pixels];
  find_pixels(work, share, Tile::pixels, pixels);
  FmaLoader<T, Tile> loader(work, share, pixels);
  T sum[Tile::side][Tile::side] = {};
#pragma unroll 1
  for (int i = 0; i < Tile::stages - 1; ++i) {
    if (i < slabs) loader.load(stages + i * Tile::stage_values);
    commit_copies();
  }
  int stage = 0;
#pragma unroll 1
  for (int i = 0; i < slabs; ++i) {
    wait_for_groups<Tile::stages - 2>();
    __syncthreads();
    const int free = stage == 0 ? Tile::stages - 1 : stage - 1;
    if (i + Tile::stages - 1 < slabs) loader.load(stages + free * Tile::stage_values);
    commit_copies();
    add_slab<Tile>(stages + stage * Tile::stage_values, sum);
    stage = stage + 1 == Tile::stages ? 0 : stage + 1;
  }
  wait_for_groups<0>();
  __syncthreads();
  const TileImage<T, Tile::pixels, Tile::maps> image{stages, pixels, work.g.target_strides.channel == 1};
  const int lane = int(threadIdx.x) % Tile::pixel_lanes, line = int(threadIdx.x) / Tile::pixel_lanes;
#pragma unroll
  for (int j = 0; j < Tile::side; ++j) {
    const int map = j / 4 * Tile::map_lanes * 4 + line * 4 + j % 4;
    const int64_t full = share.group * work.g.maps + share.map + map;
    const T shift = work.g.bias && share.map + map < work.g.maps ? work.g.bias[full] : T(0);
#pragma unroll
    for (int i = 0; i < Tile::side; ++i)
      image.at(i / 4 * Tile::pixel_lanes * 4 + lane * 4 + i % 4, map) = sum[i][j] + shift;
  }
  __syncthreads();
  image.store(work.g, share);
}

template <class T, class Tile>
void launch_gather_fma(GatherGemm<T>& work, Context& context) {
  cut_into_tiles(work, Tile::pixels, Tile::maps);
  constexpr int bytes =
      max(int(Tile::stages * Tile::stage_values * sizeof(T)), TileImage<T, Tile::pixels, Tile::maps>::bytes);
  cudaFuncSetAttribute(gather_fma<T, Tile>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  gather_fma<T, Tile><<<unsigned(work.blocks()), Tile::threads, bytes, cudaStream_t(context.stream)>>>(work);
  check_launch("implicit_gemm");
}

template <class T>
void run_gather_fma(const Gather<T>& g, Context& context) {
  const GatherAxis rows = gather_axis(g.rows, g.pass, 0), cols = gather_axis(g.cols, g.pass, 0);
  GatherGemm<T> work = gather_gemm(g, false, 16 / int64_t(sizeof(T)), context);
  const int64_t plane = rows.sources * cols.sources, channels = g.groups * g.depth;
  work.source = channels_first(g.source, g.source_strides, g.n, channels, plane, context);
  work.image = channels * plane;
  work.group = g.depth * plane;
  work.channel = plane;
  work.row = cols.sources;
  work.col = 1;
  const auto turns = [&](int tile_maps) {
    cut_into_tiles(work, FmaTile<T, 64>::pixels, tile_maps);
    return turns_of(work) * tile_maps;
  };
  if (sizeof(T) == 4 && turns(128) <= turns(64)) return launch_gather_fma<T, FmaTile<T, 128>>(work, context);
  launch_gather_fma<T, FmaTile<T, 64>>(work, context);
}

}  // namespace tp::conv
