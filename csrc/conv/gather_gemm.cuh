// fprop and dgrad as one matrix product whose left factor is never stored. This is what its two kernels share:
// gather_fma.cuh on the CUDA cores, and gather_mma.cuh on the tensor cores.
//
//   target[pixels, maps] = source[pixels, (tap, channel)] x filters[(tap, channel), maps]
//
// A row of the left factor is a pixel of the target. Its columns are divided into slabs: some channels of one tap, then
// the same channels of the next tap, and so on, then the next channels. Neighbouring taps of a tile of pixels mostly
// read the same elements, so the L1 cache serves all taps but the first. The filters are packed in the order of the
// slabs, which costs little because they are small.
#pragma once
#include "block/copies.cuh"
#include "block/launch.cuh"
#include "block/load_store.cuh"
#include "block/pipeline.cuh"
#include "conv/gather.h"
#include "conv/packed_filters.h"
#include "conv/relayout.h"

namespace tp::conv {

// The distances between the rows of the filters, packed or not: of groups, lines (maps or channels) and taps.
struct FilterStrides {
  int64_t image, row, col;
};

// The arguments of both kernels.
template <class T>
struct GatherGemm {
  Gather<T> g;
  const T* source;                          // g.source, or a copy of it in the layout that the kernel reads
  int64_t image, channel, row, col, group;  // its strides
  const T* filters;                         // packed, or g.weight
  int64_t width;                            // the elements in a row of the packed filters: maps or channels, padded
  FilterStrides filter_strides;
  const int* odd;  // dgrad: whether each of the pack_blocks blocks saw a weight that is infinite or NaN
  int64_t row_phases, col_phases, tiles, map_blocks;
  TP_HD int64_t blocks() const { return row_phases * col_phases * tiles * map_blocks * g.groups; }
};

// The share of a block: one tile of the pixels of one phase, for one block of maps of one group.
struct GatherShare {
  GatherAxis rows, cols;
  int64_t group, map, first_pixel, pixels;
};

template <class T>
TP_DEVICE GatherShare gather_share(const GatherGemm<T>& work, int64_t block, int tile_pixels, int tile_maps) {
  int64_t map_block = block, group = divide(map_block, work.map_blocks), tile = divide(group, work.g.groups),
          col_phase = divide(tile, work.tiles), row_phase = divide(col_phase, work.col_phases);
  const Gather<T>& g = work.g;
  GatherShare share{gather_axis(g.rows, g.pass, row_phase),
                    gather_axis(g.cols, g.pass, col_phase),
                    group,
                    map_block * tile_maps,
                    tile * tile_pixels,
                    0};
  share.pixels = g.n * share.rows.outputs * share.cols.outputs;
  return share;
}

// A pixel of a block's tile, in shared memory: where its window begins in the source, as an offset and as coordinates,
// and where it is in the target, for the first map of the block. For a pixel that does not exist, every tap reads
// outside.
struct GatherPixel {
  int64_t source, target;
  int h, w;
};

template <class T>
TP_DEVICE GatherPixel gather_pixel(const GatherGemm<T>& work, const GatherShare& share, int64_t pixel) {
  if (pixel >= share.pixels) return {0, 0, -(1 << 30), -(1 << 30)};
  const PhasePixel at = phase_pixel(pixel, share.rows, share.cols);
  const int64_t h = share.rows.source(at.h, 0), w = share.cols.source(at.w, 0);
  return {at.image * work.image + share.group * work.group + h * work.row + w * work.col,
          work.g.target_strides.at(at.image, share.group * work.g.maps + share.map, share.rows.target(at.h),
                                   share.cols.target(at.w)),
          int(h), int(w)};
}

// Fills in the pixels of a block's tile.
template <class T>
TP_DEVICE void find_pixels(const GatherGemm<T>& work, const GatherShare& share, int count, GatherPixel* pixels) {
  for (int i = int(threadIdx.x); i < count; i += int(blockDim.x)) {
    pixels[i] = gather_pixel(work, share, share.first_pixel + i);
  }
  __syncthreads();
}

// One row of the left factor.
template <class T>
struct GatherRow {
  const T* origin;
  int h, w;

  GatherRow() = default;
  TP_DEVICE GatherRow(const T* source, const GatherPixel& pixel)
      : origin(source + pixel.source), h(pixel.h), w(pixel.w) {}
};

// The current position of a gather: a tap. What is the same for all threads of the block is copied from shared memory
// here, so that the innermost loops do not read it again.
template <class T>
class TapWalk {
 public:
  TP_DEVICE TapWalk(const GatherGemm<T>& work, const GatherShare& share)
      : rows_(int(share.rows.sources)),
        cols_(int(share.cols.sources)),
        step_down_(int(share.rows.source_tap)),
        step_across_(int(share.cols.source_tap)),
        taps_down_(int(share.rows.taps)),
        taps_across_(int(share.cols.taps)),
        filter_down_(int(share.rows.tap_step)),
        filter_across_(int(share.cols.tap_step)),
        filter_(int(share.rows.first_tap * work.g.cols.kernel + share.cols.first_tap)),
        kernel_cols_(int(work.g.cols.kernel)) {}

  // Whether the tap of a pixel, whose window begins at (h, w), is inside the source.
  TP_DEVICE bool inside(int h, int w) const {
    return unsigned(h + down_) < unsigned(rows_) && unsigned(w + across_) < unsigned(cols_);
  }
  // The distance of the tap from the first one, in the source.
  TP_DEVICE int64_t offset(const GatherGemm<T>& work) const { return down_ * work.row + across_ * work.col; }
  // The tap's index among the packed filters.
  TP_DEVICE int filter() const { return filter_ + p_ * filter_down_ * kernel_cols_ + q_ * filter_across_; }
  // Whether there is such a tap; not after advance() has passed the last one.
  TP_DEVICE bool exists() const { return p_ < taps_down_; }
  // Goes on by `taps` taps, perhaps past the last one.
  TP_DEVICE void advance(int taps) {
    q_ += taps;
    across_ += taps * step_across_;
    while (q_ >= taps_across_ && exists()) {
      q_ -= taps_across_;
      across_ -= taps_across_ * step_across_;
      ++p_;
      down_ += step_down_;
    }
  }
  // Goes on to the next tap. After the last one, it goes back to the first and returns true.
  TP_DEVICE bool next() {
    ++q_;
    across_ += step_across_;
    if (q_ < taps_across_) return false;
    q_ = across_ = 0;
    ++p_;
    down_ += step_down_;
    if (p_ < taps_down_) return false;
    p_ = down_ = 0;
    return true;
  }

 private:
  int rows_, cols_, step_down_, step_across_, taps_down_, taps_across_, filter_down_, filter_across_, filter_,
      kernel_cols_;
  int p_ = 0, q_ = 0, down_ = 0, across_ = 0;
};

// Whether any block of pack_filters saw a weight that is infinite or NaN. All threads of the block must call it.
TP_DEVICE inline bool is_any_odd(const int* odd) {
  int any = 0;
  for (int i = int(threadIdx.x); i < pack_blocks; i += int(blockDim.x)) any |= odd[i];
  return __syncthreads_or(any);
}

// Whether such weights matter for this product.
template <class T>
TP_DEVICE bool has_odd_weights(const GatherGemm<T>& work) {
  return work.g.pass == Pass::dgrad && is_any_odd(work.odd);
}

// If they do, the block computes its share from the products that exist, one by one.
template <class T>
TP_DEVICE void store_plain_share(const GatherGemm<T>& work, const GatherShare& share, int tile_pixels, int tile_maps) {
  const Gather<T>& g = work.g;
#pragma unroll 1
  for (int i = int(threadIdx.x); i < tile_pixels * tile_maps; i += int(blockDim.x)) {
    const int64_t pixel = share.first_pixel + i % tile_pixels, map = share.map + i / tile_pixels;
    if (pixel >= share.pixels || map >= g.maps) continue;
    const PhasePixel at = phase_pixel(pixel, share.rows, share.cols);
    const auto sum = g.plain_sum(share.rows, share.cols, at.image, share.group, map, at.h, at.w);
    g.target[g.target_strides.at(at.image, share.group * g.maps + map, share.rows.target(at.h),
                                 share.cols.target(at.w))] = T(sum);
  }
}

// The tile of the product in shared memory, before it is copied to the target: in the order of the target, with padding
// against bank conflicts.
template <class T, int tile_pixels, int tile_maps>
struct TileImage {
  static constexpr int vector = 16 / int(sizeof(T));
  static constexpr int pixel_pitch = tile_maps + vector, map_pitch = tile_pixels + vector;
  static constexpr int bytes =
      int(sizeof(T)) *
      (tile_pixels * pixel_pitch > tile_maps * map_pitch ? tile_pixels * pixel_pitch : tile_maps * map_pitch);

  T* data;
  const GatherPixel* pixels_at;
  bool by_pixel;  // [pixel][map], else [map][pixel]

  TP_DEVICE int pitch() const { return by_pixel ? pixel_pitch : map_pitch; }
  TP_DEVICE T& at(int pixel, int map) const {
    return data[by_pixel ? pixel * pixel_pitch + map : map * map_pitch + pixel];
  }
  // Writes two neighbouring maps of a pixel, the first of which is even.
  TP_DEVICE void set_pair(int pixel, int map, T first, T second) const {
    if (by_pixel) {
      *reinterpret_cast<block::Vector<T, 2>*>(data + pixel * pixel_pitch + map) = {{first, second}};
    } else {
      data[map * map_pitch + pixel] = first;
      data[(map + 1) * map_pitch + pixel] = second;
    }
  }
  // Copies the tile to the target, 16 bytes at a time if they are contiguous. A barrier must precede it.
  TP_DEVICE void store(const Gather<T>& g, const GatherShare& share) const {
    const int maps = int(min(g.maps - share.map, int64_t(tile_maps)));
    const int pixels = int(min(share.pixels - share.first_pixel, int64_t(tile_pixels)));
    const int64_t plane = share.rows.outputs * share.cols.outputs;
    const bool aligned = reinterpret_cast<uintptr_t>(g.target) % 16 == 0;
    if (by_pixel) {
      aligned&& g.maps % vector == 0 ? store_pixels<vector>(g, pixels, maps) : store_pixels<1>(g, pixels, maps);
    } else {
      aligned&& plane % vector == 0 && share.rows.step == 1 && share.cols.step == 1
          ? store_maps<vector>(g, pixels, maps)
          : store_maps<1>(g, pixels, maps);
    }
  }

 private:
  template <int width>
  TP_DEVICE void store_pixels(const Gather<T>& g, int pixels, int maps) const {
    constexpr int across = tile_maps / width;
    using V = block::Vector<T, width>;
    for (int i = int(threadIdx.x); i < pixels * across; i += int(blockDim.x)) {
      const int pixel = i / across, map = i % across * width;
      if (map >= maps) continue;
      *reinterpret_cast<V*>(g.target + pixels_at[pixel].target + map) =
          *reinterpret_cast<const V*>(data + pixel * pixel_pitch + map);
    }
  }
  // Either a thread keeps its pixels, or the block has fewer threads than there are vectors in the pixels of a tile.
  template <int width>
  TP_DEVICE void store_maps(const Gather<T>& g, int pixels, int maps) const {
    constexpr int across = tile_pixels / width;
    using V = block::Vector<T, width>;
    const int lines = max(int(blockDim.x) / across, 1);
    for (int pixel = int(threadIdx.x) % across * width; pixel < pixels; pixel += int(blockDim.x) * width) {
      T* const to = g.target + pixels_at[pixel].target;
      for (int map = int(threadIdx.x) / across; map < maps; map += lines) {
        *reinterpret_cast<V*>(to + map * g.target_strides.channel) =
            *reinterpret_cast<const V*>(data + map * map_pitch + pixel);
      }
    }
  }
};

// The number of blocks that the busiest multiprocessor has to run.
template <class T>
int64_t turns_of(const GatherGemm<T>& work) {
  static const int64_t multiprocessors = block::device_attribute<cudaDevAttrMultiProcessorCount>();
  return ceil_div(work.blocks(), multiprocessors);
}

// Packs the filters, and sets all members except the source and the shape of the tiles.
template <class T>
GatherGemm<T> gather_gemm(const Gather<T>& g, bool by_map, int64_t multiple, Context& context) {
  GatherGemm<T> work{g};
  work.width = ceil_div(by_map ? g.depth : g.maps, multiple) * multiple;
  const int64_t taps = g.rows.kernel * g.cols.kernel, lines = by_map ? g.maps : g.depth;
  T* const packed = context.workspace<T>(g.groups * taps * lines * work.width);
  int* const odd = context.workspace<int>(pack_blocks);
  pack_filters(g, by_map, work.width, packed, odd, context);
  work.filters = packed;
  work.filter_strides = {taps * lines * work.width, work.width, lines * work.width};
  work.odd = odd;
  work.row_phases = phases(g.rows, g.pass);
  work.col_phases = phases(g.cols, g.pass);
  return work;
}

template <class T>
void cut_into_tiles(GatherGemm<T>& work, int tile_pixels, int tile_maps) {
  const Gather<T>& g = work.g;
  work.tiles = ceil_div(g.n * phase_outputs(g.rows, g.pass) * phase_outputs(g.cols, g.pass), int64_t(tile_pixels));
  work.map_blocks = ceil_div(g.maps, int64_t(tile_maps));
}

}  // namespace tp::conv
