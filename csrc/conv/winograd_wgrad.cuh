// wgrad by Winograd's F(2 x 2, 3 x 3) (winograd.cu) with transformed images in memory, for filters of 3 x 3 with stride
// and dilation 1 in float32, on CUDA. With many channels and maps, it takes less time to write and read these images
// than to transform them again in every block that needs them (winograd_fused_wgrad.cuh).
//
//   transform  V = B^T d B of x and W = A dy A^T of dy go to memory, in the order in which blocks read them
//   multiply   P = W V for each of the 16 components: a block computes 64 maps x 64 channels, from the tiles of one
//              slice, as in every matrix product on the CUDA cores (block/fma_tile.cuh)
//   filters    the slices are added up in a fixed order, and a thread computes G^T P G / 4
#pragma once
#include <limits>

#include "block/fma_tile.cuh"
#include "block/launch.cuh"
#include "block/slices.h"
#include "conv/gather.h"
#include "conv/winograd_transforms.h"

namespace tp::conv {

// The product of one component. Its rows are maps, its columns channels, and the inner dimension are tiles. On an H200,
// blocks of 64 x 64 are as fast as those of 64 x 128 and 128 x 128, and fewer of their sums do not exist.
struct OuterTile : block::FmaTile<64, 64, 8, 8, 16, 3, 8, 8> {
  static constexpr int width = rows, tiles = slab, factor_values = tiles * width;
  static constexpr int shared_bytes = int(sizeof(float)) * stages * stage_values;
};

// A transformed image: [component][group][block][slab][16 tiles][64 channels], with zeros for what does not exist. So
// what a block of the product reads for a slab is contiguous.
struct OuterFactor {
  float* values;
  int64_t channels, blocks;  // of a group; for dy, channels are maps

  TP_HD int64_t padded() const { return blocks * OuterTile::width; }
};

// The arguments of the kernels.
struct OuterWgrad {
  Elements<float> e;
  int64_t down, across;  // the tiles of an image
  int64_t slabs;         // of the tiles of all images
  int64_t slices;        // blocks that share the tiles of a filter
  OuterFactor dy, x;
  float* products;  // [slice][component][group][map][channel], of whole blocks
  boolean* noted;   // whether a filter is not finite

  TP_HD int64_t tiles() const { return e.n * down * across; }
  TP_HD int64_t blocks() const { return winograd_tile::components * e.groups * dy.blocks * x.blocks; }
  TP_HD int64_t plane() const { return dy.padded() * x.padded(); }
};

// The 4 x 4 inputs of a tile in one channel of x, or the 2 x 2 gradients of a tile in one map of dy, transformed.
// `from` is element 0 of the channel.
template <bool gradient>
TP_DEVICE winograd_tile::Patch<float> transformed_tile(const OuterWgrad& work, const float* from, int64_t tile) {
  using namespace winograd_tile;
  constexpr int size = gradient ? outputs : side;
  const Elements<float>& e = work.e;
  const Strides& strides = gradient ? e.y_strides : e.x_strides;
  int64_t w = tile, h = divide(w, work.across), image = divide(h, work.down);
  const int row = int(h) * outputs - (gradient ? 0 : int(e.rows.pad)),
            col = int(w) * outputs - (gradient ? 0 : int(e.cols.pad));
  const int rows = int(gradient ? e.rows.out : e.rows.in), cols = int(gradient ? e.cols.out : e.cols.in);
  const int down = int(strides.row), across = int(strides.col);
  from += image * strides.image + (row * down + col * across);
  Patch<float> patch{};
#pragma unroll
  for (int i = 0; i < size * size; ++i) {
    const int a = i / size, b = i % size;
    const bool inside = unsigned(row + a) < unsigned(rows) && unsigned(col + b) < unsigned(cols);
    patch.v[a][b] = inside ? from[a * down + b * across] : 0.0f;
  }
  patch.transform([](float (&v)[side]) { gradient ? Transforms<float>::gradient(v) : Transforms<float>::input(v); });
  return patch;
}

// The part of a slab that a block transforms at once if neighbouring channels are not contiguous: the tiles of 32
// channels. The padding lets 16 tiles of 2 channels be written without bank conflicts.
struct TransformTile {
  static constexpr int channels = 32, threads = OuterTile::tiles * channels, pitch = channels + 2,
                       values = winograd_tile::components * OuterTile::tiles * pitch;
};

// Transforms a slab of tiles for one block of channels of x, or of maps of dy. Neighbouring lanes load and store
// neighbouring channels if these are contiguous. Otherwise they load neighbouring tiles, which they exchange in
// `staged` for neighbouring channels.
template <bool gradient, bool by_channel>
TP_DEVICE void transform_slab(const OuterWgrad& work, int64_t index, float* staged) {
  using namespace winograd_tile;
  using T = TransformTile;
  const OuterFactor& factor = gradient ? work.dy : work.x;
  const int64_t stride = (gradient ? work.e.y_strides : work.e.x_strides).channel;
  int64_t slab = index, block = divide(slab, work.slabs), group = divide(block, factor.blocks);
  const float* const source = (gradient ? work.e.y : work.e.x) + group * factor.channels * stride;
  const auto transformed = [&](int tile, int lane) {
    const int64_t channel = block * OuterTile::width + lane, at = slab * OuterTile::tiles + tile;
    if (channel >= factor.channels || at >= work.tiles()) return Patch<float>{};
    return transformed_tile<gradient>(work, source + channel * stride, at);
  };
  const int64_t component_stride = work.e.groups * factor.blocks * work.slabs * OuterTile::factor_values;
  float* const to = factor.values + index * OuterTile::factor_values;
#pragma unroll 1
  for (int first = 0; first < OuterTile::factor_values; first += T::threads) {
    if constexpr (by_channel) {
      const int i = first + int(threadIdx.x);
      const Patch<float> patch = transformed(i / OuterTile::width, i % OuterTile::width);
#pragma unroll
      for (int k = 0; k < components; ++k) to[k * component_stride + i] = patch.v[k / side][k % side];
    } else {
      const int channel = first / OuterTile::tiles;
      int tile = int(threadIdx.x) % OuterTile::tiles, lane = int(threadIdx.x) / OuterTile::tiles;
      const Patch<float> patch = transformed(tile, channel + lane);
      __syncthreads();
#pragma unroll
      for (int k = 0; k < components; ++k)
        staged[(k * OuterTile::tiles + tile) * T::pitch + lane] = patch.v[k / side][k % side];
      __syncthreads();
      tile = int(threadIdx.x) / T::channels, lane = int(threadIdx.x) % T::channels;
#pragma unroll
      for (int k = 0; k < components; ++k)
        to[k * component_stride + tile * OuterTile::width + channel + lane] =
            staged[(k * OuterTile::tiles + tile) * T::pitch + lane];
    }
  }
}

// Transforms dy, then x. One block per slab and block of channels.
template <bool by_channel>
__global__ void __launch_bounds__(TransformTile::threads) winograd_transform(const __grid_constant__ OuterWgrad work) {
  __shared__ float staged[by_channel ? 1 : TransformTile::values];
  block::allow_next_launch();
  const int64_t index = blockIdx.x, gradients = work.e.groups * work.dy.blocks * work.slabs;
  if (index == 0 && threadIdx.x == 0) *work.noted = boolean(false);
  if (index < gradients) {
    transform_slab<true, by_channel>(work, index, staged);
  } else {
    transform_slab<false, by_channel>(work, index - gradients, staged);
  }
}

// P = W V of one component for a block of maps and channels, from the tiles of one slice.
__global__ void __launch_bounds__(OuterTile::threads, OuterTile::residents)
    winograd_outer(const __grid_constant__ OuterWgrad work) {
  extern __shared__ __align__(16) unsigned char pool[];
  float* const stages = reinterpret_cast<float*>(pool);
  int64_t map_block = blockIdx.x, channel_block = divide(map_block, work.dy.blocks),
          group = divide(channel_block, work.x.blocks), component = divide(group, work.e.groups),
          slice = divide(component, int64_t(winograd_tile::components));
  const int64_t plane = component * work.e.groups + group;
  const int64_t first = slice * work.slabs / work.slices, slabs = (slice + 1) * work.slabs / work.slices - first;
  const auto begin = [&](const OuterFactor& factor, int64_t block) {
    return factor.values + ((plane * factor.blocks + block) * work.slabs + first) * OuterTile::factor_values;
  };
  const float *left = begin(work.dy, map_block), *right = begin(work.x, channel_block);
  const auto load = [&](float* stage) {
#pragma unroll
    for (int i = int(threadIdx.x) * 4; i < OuterTile::factor_values; i += OuterTile::threads * 4) {
      block::copy_or_zero<16>(stage + i, left + i, true);
      block::copy_or_zero<16>(stage + OuterTile::factor_values + i, right + i, true);
    }
    left += OuterTile::factor_values;
    right += OuterTile::factor_values;
  };
  block::wait_for_launch_before();
  float sum[OuterTile::row_side][OuterTile::col_side] = {};
  block::for_slabs<OuterTile>(int(slabs), stages, load,
                              [&](const float* stage) { block::add_slab<OuterTile>(stage, sum); });
  block::allow_next_launch();
  float* const to = work.products + (slice * winograd_tile::components * work.e.groups + plane) * work.plane() +
                    (map_block * work.x.padded() + channel_block) * OuterTile::width;
  block::store_sums<OuterTile>(stages, sum, [&](int row, int col, const float* values) {
    using Quad = block::Vector<float, 4>;
    *reinterpret_cast<Quad*>(to + row * work.x.padded() + col) = {{values[0], values[1], values[2], values[3]}};
  });
}

// The filters. A block computes 64 of them: for each of these, one to four threads add up the slices of the rows of its
// 4 x 4 components, and one transforms the sums.
struct FilterBlock {
  static constexpr int filters = 64, most_threads = filters * winograd_tile::side,
                       size = winograd_tile::taps * winograd_tile::taps;
};

__global__ void __launch_bounds__(FilterBlock::most_threads) winograd_filters(const __grid_constant__ OuterWgrad work) {
  using namespace winograd_tile;
  constexpr int filters = FilterBlock::filters, size = FilterBlock::size;
  __shared__ float sums[components][filters], taps_of_block[filters * size];
  const Elements<float>& e = work.e;
  const int64_t first = int64_t(blockIdx.x) * filters, plane = work.plane();
  const int filter = int(threadIdx.x) % filters;
  int64_t channel = first + filter, map = divide(channel, e.channels), group = divide(map, e.maps);
  block::wait_for_launch_before();
#pragma unroll 1
  for (int row = int(threadIdx.x) / filters; row < side; row += int(blockDim.x) / filters) {
    float sum[side] = {};
    if (group < e.groups) {
      const float* from = work.products + (row * side * e.groups + group) * plane + map * work.x.padded() + channel;
#pragma unroll 4
      for (int64_t slice = 0; slice < work.slices; ++slice) {
#pragma unroll
        for (int k = 0; k < side; ++k) sum[k] += from[k * e.groups * plane];
        from += components * e.groups * plane;
      }
    }
#pragma unroll
    for (int k = 0; k < side; ++k) sums[row * side + k][filter] = sum[k];
  }
  __syncthreads();
  if (int(threadIdx.x) < filters) {
    Patch<float> patch;
#pragma unroll
    for (int k = 0; k < components; ++k) patch.v[k / side][k % side] = sums[k][filter];
    patch.transform([](float (&v)[side]) { Transforms<float>::taps_of(v); });
    float odd = 0;
#pragma unroll
    for (int k = 0; k < size; ++k) {
      const float tap = patch.v[k / taps][k % taps] * 0.25f;
      taps_of_block[filter * size + k] = tap;
      odd += tap * 0.0f;
    }
    if (odd != 0.0f) *work.noted = boolean(true);
  }
  __syncthreads();
  const int64_t values = min(int64_t(filters * size), e.weights() - first * size);
  for (int i = int(threadIdx.x); i < values; i += int(blockDim.x)) e.weight[first * size + i] = taps_of_block[i];
}

// ---- the host's part

// Launches the kernels if they can compute this, and returns whether they do. They set `noted`.
inline bool launch_winograd_wgrad(const Elements<float>& e, boolean* noted, Context& context) {
  using namespace winograd_tile;
  constexpr int64_t most = int64_t(1) << 29;  // positions in an image are counted in int
  if (!suits_kernels(e.rows) || !suits_kernels(e.cols) || max(e.x_strides.image, e.y_strides.image) >= most)
    return false;
  OuterWgrad work{e};
  work.down = ceil_div(e.rows.out, int64_t(outputs));
  work.across = ceil_div(e.cols.out, int64_t(outputs));
  work.slabs = ceil_div(work.tiles(), int64_t(OuterTile::tiles));
  const auto allocate = [&](OuterFactor& factor, int64_t channels) {
    factor.channels = channels;
    factor.blocks = ceil_div(channels, int64_t(OuterTile::width));
    factor.values =
        context.workspace<float>(components * e.groups * factor.blocks * work.slabs * OuterTile::factor_values);
  };
  allocate(work.dy, e.maps);
  allocate(work.x, e.channels);
  const int64_t transforms = e.groups * (work.dy.blocks + work.x.blocks) * work.slabs;
  if (work.blocks() * work.slabs == 0 || transforms > std::numeric_limits<int>::max()) return false;
  const int64_t together = OuterTile::residents * block::device_attribute<cudaDevAttrMultiProcessorCount>();
  work.slices = block::fastest_slices(work.blocks(), work.slabs, 4, together);
  work.noted = noted;
  work.products = context.workspace<float>(work.slices * components * e.groups * work.plane());
  const bool by_channel = e.x_strides.channel == 1;
  auto transform = by_channel ? winograd_transform<true> : winograd_transform<false>;
  transform<<<unsigned(transforms), TransformTile::threads, 0, cudaStream_t(context.stream)>>>(work);
  check_launch("winograd_transform");
  block::allow_shared_memory(winograd_outer, OuterTile::shared_bytes);
  block::launch_early(winograd_outer, unsigned(work.blocks() * work.slices), OuterTile::threads,
                      OuterTile::shared_bytes, context, work);
  check_launch("winograd_outer");
  const int64_t filters = e.weights() / FilterBlock::size;
  const int filter_threads = work.slices < 4 ? FilterBlock::filters : FilterBlock::most_threads;
  block::launch_early(winograd_filters, unsigned(ceil_div(filters, int64_t(FilterBlock::filters))), filter_threads, 0,
                      context, work);
  check_launch("winograd_filters");
  return true;
}

}  // namespace tp::conv
