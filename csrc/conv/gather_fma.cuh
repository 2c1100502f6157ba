// The implicit matrix product of fprop and dgrad on the CUDA cores, in true float32 or double.
//
// The source is stored map by map, so neighbouring pixels of a channel are contiguous: consecutive threads read column
// k of the left tile from consecutive addresses. block/fma_tile.cuh multiplies the slabs. A slab has the channels of
// one tap; if there are only a few, it has those of several taps.
#pragma once
#include "block/fma_tile.cuh"
#include "conv/gather_gemm.cuh"

namespace tp::conv {

// The tile for accumulators A: `pixels` x `maps`. Three blocks of 128 threads with 64 sums each are faster than four
// with fewer registers, and than two with 128 sums. There is half a tile for up to 32 maps.
template <class A, int tile_maps, bool wide = sizeof(A) == 8>
struct FmaTile : block::FmaTile<wide ? 64 : 128, tile_maps, wide ? 4 : 8, wide || tile_maps == 32 ? 4 : 8,
                                wide ? 8 : 16, 3, wide ? 2 : 3, wide ? 4 : 8> {
  static constexpr int pixels = FmaTile::rows, maps = FmaTile::cols;
};

// Which elements of a slab a thread copies: of the left factor one pixel, from row line() on every `lines`-th row; of
// the filters one vector of maps, from row filter_line() on every `filter_lines`-th row.
template <class T, class Tile>
struct FmaLanes {
  static constexpr int vector = 16 / int(sizeof(T)), across = Tile::maps / vector;  // of the filters
  static constexpr int lines = Tile::threads / Tile::pixels, filter_lines = Tile::threads / across;

  TP_DEVICE static int pixel() { return int(threadIdx.x) % Tile::pixels; }
  TP_DEVICE static int line() { return int(threadIdx.x) / Tile::pixels; }
  TP_DEVICE static int filter_map() { return int(threadIdx.x) % across * vector; }
  TP_DEVICE static int filter_line() { return int(threadIdx.x) / across; }
};

template <class T, class Tile>
class FmaLoader : FmaLanes<T, Tile> {
  using Lanes = FmaLanes<T, Tile>;
  using Lanes::filter_line, Lanes::filter_lines, Lanes::filter_map, Lanes::line, Lanes::lines, Lanes::pixel;

 public:
  TP_DEVICE FmaLoader(const GatherGemm<T>& work, const GatherShare& share, const GatherPixel* pixels)
      : work_(work),
        depth_(int(work.g.depth)),
        sources_down_(int(share.rows.sources)),
        sources_across_(int(share.cols.sources)),
        taps_down_(int(share.rows.taps)),
        taps_across_(int(share.cols.taps)),
        step_down_(int(share.rows.source_tap)),
        step_across_(int(share.cols.source_tap)),
        has_map_(share.map + filter_map() < work.width) {
    const int64_t plane = work.g.depth * work.width;  // the filters of a tap
    const int64_t kernel_cols = work.g.cols.kernel, tap = share.rows.first_tap * kernel_cols + share.cols.first_tap;
    filter_ = work.filters + (share.group * work.g.rows.kernel * kernel_cols + tap) * plane +
              filter_line() * work.width + share.map + filter_map();
    filter_across_ = share.cols.tap_step * plane;
    filter_down_ = share.rows.tap_step * kernel_cols * plane - taps_across_ * filter_across_;
    filter_deep_ = Tile::slab * work.width - taps_down_ * share.rows.tap_step * kernel_cols * plane;
    row_ = step_down_ * work.row - int64_t(taps_across_) * step_across_;
    deep_ = Tile::slab * work.channel - taps_down_ * step_down_ * work.row;
    const GatherPixel& p = pixels[pixel()];
    source_ = work.source + p.source + line() * work.channel;
    h_ = p.h;
    w_ = p.w;
  }

  // Starts to copy the next slab of both factors: the next tap, or after the last tap the next channels.
  TP_DEVICE void load(T* stage) {
    if (depth_ >= Tile::slab) {
      copy(stage, [](int) { return true; });
    } else {
      copy(stage, [&](int line) { return line < depth_; });
    }
    ++tap_across_;
    move(0, step_across_, step_across_, filter_across_);
    if (tap_across_ < taps_across_) return;
    tap_across_ = 0;
    ++tap_down_;
    move(step_down_, -taps_across_ * step_across_, row_, filter_down_);
    if (tap_down_ < taps_down_) return;
    tap_down_ = 0;
    depth_ -= Tile::slab;
    move(-taps_down_ * step_down_, 0, deep_, filter_deep_);
  }

 private:
  // Advances in the source by that many rows and columns, which are `source` elements, and in the filters by `filter`
  // elements.
  TP_DEVICE void move(int down, int across, int64_t source, int64_t filter) {
    h_ += down;
    w_ += across;
    source_ += source;
    filter_ += filter;
  }
  template <class Exists>
  TP_DEVICE void copy(T* stage, const Exists& exists) const {
    T* const left = stage + line() * Tile::pixels + pixel();
    const bool inside = unsigned(h_) < unsigned(sources_down_) && unsigned(w_) < unsigned(sources_across_);
    const T* from = source_;
#pragma unroll
    for (int i = 0; i < Tile::slab; i += lines) {
      block::copy_or_zero<sizeof(T)>(left + i * Tile::pixels, from, inside && exists(line() + i));
      from += lines * work_.channel;
    }
    T* const right = stage + Tile::slab * Tile::pixels + filter_line() * Tile::maps + filter_map();
#pragma unroll
    for (int i = 0; i < Tile::slab; i += filter_lines) {
      block::copy_or_zero<16>(right + i * Tile::maps, filter_ + i * work_.width, has_map_ && exists(filter_line() + i));
    }
  }

  const GatherGemm<T>& work_;
  const T *source_, *filter_;  // of this thread, for the next slab
  int h_, w_;                  // the pixel in the source
  int depth_;                  // how many channels are left from this slab on
  const int sources_down_, sources_across_, taps_down_, taps_across_, step_down_, step_across_;
  const bool has_map_;
  int tap_down_ = 0, tap_across_ = 0;
  // Strides to the next tap, to the next row of taps, and to the channels of the next slab.
  int64_t filter_across_, filter_down_, filter_deep_, row_, deep_;
};

// The same for fprop from few channels: the columns of the left factor are all channels of the first tap, then all of
// the second, and so on. The packed filters have the same order.
template <class T, class Tile>
class FewChannelsLoader : FmaLanes<T, Tile> {
  using Lanes = FmaLanes<T, Tile>;
  using Lanes::filter_line, Lanes::filter_lines, Lanes::filter_map, Lanes::line, Lanes::lines, Lanes::pixel;

 public:
  TP_DEVICE FewChannelsLoader(const GatherGemm<T>& work, const GatherShare& share, const GatherPixel* pixels)
      : tap_(work, share),
        work_(work),
        depth_(int(work.g.depth)),
        has_map_(share.map + filter_map() < work.width),
        filters_left_(int(share.rows.taps * share.cols.taps) * depth_ - filter_line()) {
    filter_ = work.filters + (share.group * (filters_left_ + filter_line()) + filter_line()) * work.width + share.map +
              filter_map();
    const GatherPixel& p = pixels[pixel()];
    source_ = work.source + p.source;
    h_ = p.h;
    w_ = p.w;
    advance(line());
  }

  // Starts to copy the next slab of both factors.
  TP_DEVICE void load(T* stage) {
    T* const left = stage + int(threadIdx.x);
#pragma unroll
    for (int i = 0; i < Tile::slab; i += lines) {
      block::copy_or_zero<sizeof(T)>(left + i * Tile::pixels, source_ + offset_, inside_);
      advance(lines);
    }
    T* const right = stage + Tile::slab * Tile::pixels + filter_line() * Tile::maps + filter_map();
#pragma unroll
    for (int i = 0; i < Tile::slab; i += filter_lines) {
      block::copy_or_zero<16>(right + i * Tile::maps, filter_ + i * work_.width, has_map_ && i < filters_left_);
    }
    filter_ += Tile::slab * work_.width;
    filters_left_ -= Tile::slab;
  }

 private:
  // Goes on by so many columns of the left factor.
  TP_DEVICE void advance(int columns) {
    channel_ += columns;
    while (channel_ >= depth_) {
      channel_ -= depth_;
      tap_.advance(1);
    }
    offset_ = tap_.offset(work_) + channel_ * work_.channel;
    inside_ = tap_.exists() && tap_.inside(h_, w_);
  }

  TapWalk<T> tap_;
  const GatherGemm<T>& work_;
  const int depth_;
  const bool has_map_;
  int filters_left_;  // rows, from the one that this thread copies next
  const T *source_, *filter_;
  int h_, w_, channel_ = 0;
  int64_t offset_;  // of the next element, from the first one of the pixel's window
  bool inside_;
};

// Adds the bias. Every column of a thread's sums is one map.
template <class Tile, class T>
TP_DEVICE void add_bias(const GatherGemm<T>& work, const GatherShare& share, T (&sum)[Tile::row_side][Tile::col_side]) {
  if (!work.g.bias) return;
#pragma unroll
  for (int j = 0; j < Tile::col_side; ++j) {
    const int64_t map = share.map + Tile::col(j / 4) + j % 4;
    const T shift = map < work.g.maps ? work.g.bias[share.group * work.g.maps + map] : T(0);
#pragma unroll
    for (int i = 0; i < Tile::row_side; ++i) sum[i][j] += shift;
  }
}

// The number of slabs of one tap after another, and of columns in the order of FewChannelsLoader.
template <class Tile>
TP_HD int64_t fma_slabs(int64_t taps, int64_t depth, bool few_channels) {
  constexpr int64_t slab = Tile::slab;
  return few_channels ? ceil_div(taps * depth, slab) : taps * ceil_div(depth, slab);
}

template <class T, class Tile, bool few_channels>
__global__ void __launch_bounds__(Tile::threads, Tile::residents)
    gather_fma(const __grid_constant__ GatherGemm<T> work) {
  extern __shared__ __align__(16) unsigned char pool[];
  T* const stages = reinterpret_cast<T*>(pool);
  __shared__ GatherShare share;
  // Find the share of the block and its pixels.
  if (threadIdx.x == 0) share = gather_share(work, blockIdx.x, Tile::pixels, Tile::maps);
  __syncthreads();
  if (has_odd_weights(work)) return store_plain_share(work, share, Tile::pixels, Tile::maps);
  const int slabs = int(fma_slabs<Tile>(share.rows.taps * share.cols.taps, work.g.depth, few_channels));
  __shared__ GatherPixel pixels[Tile::pixels];
  find_pixels(work, share, Tile::pixels, pixels);
  std::conditional_t<few_channels, FewChannelsLoader<T, Tile>, FmaLoader<T, Tile>> loader(work, share, pixels);
  // Multiply slab by slab.
  T sum[Tile::row_side][Tile::col_side] = {};
  block::for_slabs<Tile>(
      slabs, stages, [&](T* stage) { loader.load(stage); }, [&](const T* stage) { block::add_slab<Tile>(stage, sum); });
  __syncthreads();
  // Add the bias, and write the sums to the image in shared memory, in the order of the target; then copy it there.
  const TileImage<T, Tile::pixels, Tile::maps> image{stages, pixels, work.g.target_strides.channel == 1};
  add_bias<Tile>(work, share, sum);
  using Quad = block::Vector<T, 4>;
#pragma unroll
  for (int a = 0; a < Tile::row_quads; ++a) {
#pragma unroll
    for (int b = 0; b < Tile::col_quads; ++b) {
      T* const corner = &image.at(Tile::row(a), Tile::col(b));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const auto at = [&](int m) { return image.by_pixel ? sum[a * 4 + k][b * 4 + m] : sum[a * 4 + m][b * 4 + k]; };
        *reinterpret_cast<Quad*>(corner + k * image.pitch()) = {{at(0), at(1), at(2), at(3)}};
      }
    }
  }
  __syncthreads();
  image.store(work.g, share);
}

template <class T, class Tile>
void launch_gather_fma(GatherGemm<T>& work, Context& context) {
  cut_into_tiles(work, Tile::pixels, Tile::maps);
  constexpr int bytes =
      max(int(Tile::stages * Tile::stage_values * sizeof(T)), TileImage<T, Tile::pixels, Tile::maps>::bytes);
  // The order for few channels takes about a fifth more time per slab.
  const int64_t taps = work.g.rows.kernel * work.g.cols.kernel, depth = work.g.depth;
  const bool few =
      work.g.pass == Pass::fprop && 5 * fma_slabs<Tile>(taps, depth, false) > 6 * fma_slabs<Tile>(taps, depth, true);
  const auto kernel = few ? gather_fma<T, Tile, true> : gather_fma<T, Tile, false>;
  block::allow_shared_memory(kernel, bytes);
  kernel<<<unsigned(work.blocks()), Tile::threads, bytes, cudaStream_t(context.stream)>>>(work);
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
  g.maps <= 32 ? launch_gather_fma<T, FmaTile<T, 32>>(work, context)
               : launch_gather_fma<T, FmaTile<T, 64>>(work, context);
}

}  // namespace tp::conv
