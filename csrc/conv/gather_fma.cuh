// The implicit matrix product of fprop and dgrad on the CUDA cores, in true float32 or double.
//
// The source lies map by map, so that neighbouring pixels of one channel are neighbours in memory: column k of the left
// tile is read by consecutive threads from consecutive addresses. A slab of `slab` channels of both factors is copied to
// shared memory while the products of the slab before are computed from there. A thread keeps `side` x `side` sums in
// registers and reads 2 * side values for side * side products.
#pragma once
#include "conv/gather_gemm.cuh"
#include "conv/strips.cuh"

namespace tp::conv {

#ifdef __CUDACC__

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
 public:
  TP_DEVICE FmaLoader(const GatherGemm<T>& work, const GatherShare& share)
      : work_(work), share_(share), row_(gather_row(work, share, share.first_pixel + int(threadIdx.x) % Tile::pixels)) {}

  // Begins to copy the next slab of both factors.
  TP_DEVICE void load(T* stage) {
    const Gather<T>& g = work_.g;
    const int t = int(threadIdx.x), depth = int(g.depth);
    const int64_t dh = at_.p * share_.rows.source_tap, dw = at_.q * share_.cols.source_tap;
    const int64_t h = row_.h + dh, w = row_.w + dw;
    const bool inside = share_.rows.inside(h) && share_.cols.inside(w);
    const T* from = inside ? row_.origin + dh * work_.row + dw * work_.col : work_.source;
    constexpr int lines = Tile::threads / Tile::pixels;
#pragma unroll
    for (int k = t / Tile::pixels; k < Tile::slab; k += lines) {
      const bool exists = inside && at_.channel + k < depth;
      copy_or_zero<sizeof(T)>(stage + k * Tile::pixels + t % Tile::pixels,
                              from + (exists ? (at_.channel + k) * work_.channel : 0), exists);
    }
    T* const filters = stage + Tile::slab * Tile::pixels;
    const int64_t tap = share_.rows.tap(at_.p) * g.cols.kernel + share_.cols.tap(at_.q);
    const T* const first = work_.filters + (share_.group * g.rows.kernel * g.cols.kernel + tap) * g.depth * work_.width;
    constexpr int vector = 16 / int(sizeof(T)), across = Tile::maps / vector;
#pragma unroll
    for (int i = t; i < Tile::slab * across; i += Tile::threads) {
      const int k = i / across, map = i % across * vector;
      const bool exists = at_.channel + k < depth && share_.map + map < work_.width;
      copy_or_zero<16>(filters + k * Tile::maps + map,
                       exists ? first + (at_.channel + k) * work_.width + share_.map + map : first, exists);
    }
    at_.next(Tile::slab, depth, int(share_.cols.taps));
  }

 private:
  const GatherGemm<T>& work_;
  const GatherShare& share_;
  const GatherRow<T> row_;
  SlabCursor at_;
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
  FmaLoader<T, Tile> loader(work, share);
  T sum[Tile::side][Tile::side] = {};
#pragma unroll
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
  const TileImage<T, Tile::pixels, Tile::maps> image{stages, work.g.target_strides.channel == 1};
  const int lane = int(threadIdx.x) % Tile::pixel_lanes, line = int(threadIdx.x) / Tile::pixel_lanes;
#pragma unroll
  for (int j = 0; j < Tile::side; ++j) {
    const int map = j / 4 * Tile::map_lanes * 4 + line * 4 + j % 4;
    const int64_t full = share.group * work.g.maps + share.map + map;
    const T shift = work.g.bias && share.map + map < work.g.maps ? work.g.bias[full] : T(0);
#pragma unroll
    for (int i = 0; i < Tile::side; ++i) image.at(i / 4 * Tile::pixel_lanes * 4 + lane * 4 + i % 4, map) = sum[i][j] + shift;
  }
  __syncthreads();
  image.store(work.g, share);
}

template <class T, class Tile>
void launch_gather_fma(GatherGemm<T>& work, Context& context) {
  cut_into_tiles(work, Tile::pixels, Tile::maps);
  constexpr int bytes = max(int(Tile::stages * Tile::stage_values * sizeof(T)),
                            TileImage<T, Tile::pixels, Tile::maps>::bytes);
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
  cut_into_tiles(work, FmaTile<T, 64>::pixels, 64);
  if (sizeof(T) == 4 && tile_maps_for(work.tiles * work.row_phases * work.col_phases * g.groups, g.maps, 64, 128) == 128) {
    return launch_gather_fma<T, FmaTile<T, 128>>(work, context);
  }
  launch_gather_fma<T, FmaTile<T, 64>>(work, context);
}

#endif

}  // namespace tp::conv
