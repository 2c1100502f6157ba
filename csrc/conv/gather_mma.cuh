// The implicit matrix product of fprop and dgrad on the tensor cores, for half and bfloat16, with sums in float.
//
// The channels of a pixel are contiguous, so 16 bytes are 8 columns of a row of the left factor. If a pixel has only 8
// or 16 channels, a slab has those of four or two taps; otherwise most of it would be zeros. Both tiles of a slab are
// in shared memory, as rows of 32 elements, 64 bytes. The quarters of a row are swizzled by its number; otherwise the
// eight rows that ldmatrix reads at once would conflict on two banks. Copies run `stages` - 1 slabs ahead.
#pragma once
#include "conv/gather_gemm.cuh"
#include "conv/tensor_cores.cuh"

namespace tp::conv {

// A warp computes 64 x 32 sums.
template <int pixels_, int maps_>
struct MmaTile {
  static constexpr int pixels = pixels_, maps = maps_, slab = 32, stages = 4;
  static constexpr int warps_down = pixels / 64, threads = warps_down * (maps / 32) * 32, quarters = slab / 8;
  static constexpr int stage_values = slab * (pixels + maps);
};

// How many taps a slab of MmaTile has, if a pixel has `width` channels, and how many slabs there are for `taps` taps.
TP_HD inline int taps_per_slab(int64_t width) { return width == 8 ? 4 : width == 16 ? 2 : 1; }
TP_HD inline int mma_slabs(int taps, int width) {
  const int at_once = taps_per_slab(width);
  return at_once > 1 ? ceil_div(taps, at_once) : taps * ceil_div(width, MmaTile<128, 64>::slab);
}

// The position of element 8 * quarter of row `row`, in a tile with rows of 32 elements.
TP_DEVICE inline int swizzled(int row, int quarter) { return row * 32 + (quarter ^ (row >> 1 & 3)) * 8; }

template <class T, class Tile>
class MmaLoader {
  static constexpr int lines = Tile::threads / Tile::quarters, rows = Tile::pixels / lines, maps = Tile::maps / lines;
  static_assert(lines % 8 == 0, "the rows of a thread are swizzled alike");

 public:
  TP_DEVICE MmaLoader(const GatherGemm<T>& work, const GatherShare& share, const GatherPixel* pixels)
      : work_(work),
        tap_(work, share),
        taps_per_slab_(taps_per_slab(work.width)),
        own_channel_(taps_per_slab_ > 1 ? quarter() * 8 % int(work.width) : quarter() * 8),
        filters_(work.filters +
                 (share.group * work.g.rows.kernel * work.g.cols.kernel * work.g.maps + share.map + line()) *
                     work.width +
                 own_channel_),
        maps_left_(int(min(work.g.maps - share.map, int64_t(Tile::maps))) - line()) {
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      row_[i] = GatherRow<T>(work.source, pixels[line() + i * lines]);
      row_[i].origin += own_channel_;
    }
    if (taps_per_slab_ > 1) tap_.advance(quarter() * 8 / int(work.width));
    begin_tap();
  }

  // Starts to copy the next slab of both factors.
  TP_DEVICE void load(T* stage) {
    T* const to = stage + swizzled(line(), quarter());
    const bool more = channel_ + own_channel_ < int(work_.width) && tap_.exists();
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      block::copy_or_zero<16>(to + i * lines * Tile::slab, row_[i].origin + offset_, more && (inside_ >> i & 1));
    }
#pragma unroll
    for (int i = 0; i < maps; ++i) {
      block::copy_or_zero<16>(to + (Tile::pixels + i * lines) * Tile::slab, filter_ + i * lines * work_.width,
                              more && i * lines < maps_left_);
    }
    if (taps_per_slab_ > 1) {
      tap_.advance(taps_per_slab_);
    } else if (tap_.next()) {
      channel_ += Tile::slab;
    }
    begin_tap();
  }

 private:
  TP_DEVICE static int quarter() { return int(threadIdx.x) % Tile::quarters; }
  TP_DEVICE static int line() { return int(threadIdx.x) / Tile::quarters; }
  TP_DEVICE void begin_tap() {
    offset_ = tap_.offset(work_) + channel_;
    filter_ = filters_ + int64_t(tap_.filter()) * work_.g.maps * work_.width + channel_;
    inside_ = 0;
#pragma unroll
    for (int i = 0; i < rows; ++i) inside_ |= unsigned(tap_.inside(row_[i].h, row_[i].w)) << i;
  }

  const GatherGemm<T>& work_;
  TapWalk<T> tap_;  // of this thread
  const int taps_per_slab_, own_channel_;
  const T* filters_;
  const int maps_left_;
  GatherRow<T> row_[rows];
  int64_t offset_;   // of the next slab, from the origin of each row
  const T* filter_;  // of this thread, for the next slab
  unsigned inside_;  // one bit per row
  int channel_ = 0;
};

// Adds the products of one slab to the sums of a warp, which are [64 / 16][32 / 8] tiles of the tensor cores.
template <class T, class Tile>
TP_DEVICE void multiply_slab(const T* stage, int warp_row, int warp_col, float (&sum)[4][4][4]) {
  const int lane = int(threadIdx.x) % 32;
  // The second half of a row is two quarters further on. Swizzled positions are reached by exclusive or, so ^ k goes
  // there.
  const int left = swizzled(lane % 16, lane / 16), right = swizzled(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const T *const pixels = stage + warp_row * Tile::slab, *const filters =
                                                             stage + (Tile::pixels + warp_col) * Tile::slab;
#pragma unroll
  for (int k = 0; k < Tile::slab; k += 16) {
    unsigned a[4][4], b[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) load_matrices<false>(a[i], pixels + (left ^ k) + i * 16 * Tile::slab);
#pragma unroll
    for (int j = 0; j < 2; ++j) load_matrices<false>(b[j], filters + (right ^ k) + j * 16 * Tile::slab);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) multiply_add<T>(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::threads == 128 ? 3 : 2)
    gather_mma(const __grid_constant__ GatherGemm<T> work) {
  extern __shared__ __align__(16) unsigned char pool[];
  T* const stages = reinterpret_cast<T*>(pool);
  __shared__ GatherShare share;
  // Find the share of the block and its pixels.
  if (threadIdx.x == 0) share = gather_share(work, blockIdx.x, Tile::pixels, Tile::maps);
  __syncthreads();
  if (has_odd_weights(work)) return store_plain_share(work, share, Tile::pixels, Tile::maps);
  const int slabs = mma_slabs(int(share.rows.taps * share.cols.taps), int(work.width));
  const int warp = int(threadIdx.x) / 32, warp_row = warp % Tile::warps_down * 64,
            warp_col = warp / Tile::warps_down * 32;
  __shared__ GatherPixel pixels[Tile::pixels];
  find_pixels(work, share, Tile::pixels, pixels);
  MmaLoader<T, Tile> loader(work, share, pixels);
  float sum[4][4][4] = {};
// Start to copy the first slabs, then multiply one slab after another while the next ones arrive.
#pragma unroll 1
  for (int i = 0; i < Tile::stages - 1; ++i) {
    if (i < slabs) loader.load(stages + i * Tile::stage_values);
    block::commit_copies();
  }
  int stage = 0;
#pragma unroll 1
  for (int i = 0; i < slabs; ++i) {
    block::wait_for_groups<Tile::stages - 2>();
    __syncthreads();
    const int free = (stage + Tile::stages - 1) % Tile::stages;
    if (i + Tile::stages - 1 < slabs) loader.load(stages + free * Tile::stage_values);
    block::commit_copies();
    multiply_slab<T, Tile>(stages + stage * Tile::stage_values, warp_row, warp_col, sum);
    stage = (stage + 1) % Tile::stages;
  }
  block::wait_for_groups<0>();
  __syncthreads();
  // Add the bias, and write the sums to the image in shared memory, in the order of the target; then copy it there.
  const TileImage<T, Tile::pixels, Tile::maps> image{stages, pixels, work.g.target_strides.channel == 1};
  const int lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int map = warp_col + j * 8 + lane % 4 * 2;
    float shift[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const bool shifts = work.g.bias && share.map + map + e < work.g.maps;
      shift[e] = shifts ? float(work.g.bias[share.group * work.g.maps + share.map + map + e]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int pixel = warp_row + i * 16 + lane / 4;
      image.set_pair(pixel, map, T(sum[i][j][0] + shift[0]), T(sum[i][j][1] + shift[1]));
      image.set_pair(pixel + 8, map, T(sum[i][j][2] + shift[0]), T(sum[i][j][3] + shift[1]));
    }
  }
  __syncthreads();
  image.store(work.g, share);
}

template <class T, class Tile>
void launch_gather_mma(GatherGemm<T>& work, Context& context) {
  cut_into_tiles(work, Tile::pixels, Tile::maps);
  constexpr int bytes =
      max(int(Tile::stages * Tile::stage_values * sizeof(T)), TileImage<T, Tile::pixels, Tile::maps>::bytes);
  block::allow_shared_memory(gather_mma<T, Tile>, bytes);
  gather_mma<T, Tile><<<unsigned(work.blocks()), Tile::threads, bytes, cudaStream_t(context.stream)>>>(work);
  check_launch("implicit_gemm");
}

template <class T>
void run_gather_mma(const Gather<T>& g, Context& context) {
  const GatherAxis rows = gather_axis(g.rows, g.pass, 0), cols = gather_axis(g.cols, g.pass, 0);
  GatherGemm<T> work = gather_gemm(g, true, 8, context);
  const ChannelsLast<T> source(g.source, g.source_strides, g.n, g.groups, g.depth, rows.sources, cols.sources, context);
  work.source = source.data;
  work.image = source.image;
  work.row = source.row;
  work.col = source.col;
  work.group = source.group;
  work.channel = 1;
  // Of the tiles with the fewest reads per product, take the one whose blocks are distributed most evenly over the
  // multiprocessors.
  const auto turns = [&](int tile_pixels, int tile_maps) {
    cut_into_tiles(work, tile_pixels, tile_maps);
    return turns_of(work) * tile_pixels * tile_maps;
  };
  if (g.maps <= 32) return launch_gather_mma<T, MmaTile<256, 32>>(work, context);
  const int64_t square = turns(128, 128), tall = turns(256, 64), small = turns(128, 64);
  if (square <= min(tall, small)) return launch_gather_mma<T, MmaTile<128, 128>>(work, context);
  if (tall <= small) return launch_gather_mma<T, MmaTile<256, 64>>(work, context);
  launch_gather_mma<T, MmaTile<128, 64>>(work, context);
}

}  // namespace tp::conv
