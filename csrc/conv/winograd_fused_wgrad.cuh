// wgrad by Winograd's F(2 x 2, 3 x 3) (winograd.cu) in one kernel, without transformed images in memory, for filters of
// 3 x 3 with stride and dilation 1 in float32, on CUDA.
//
// A block computes the filters that lead from 32 channels to 64 maps, from the tiles of one slice, in four steps:
//
//   load       a thread reads the 4 x 4 inputs of one tile and channel, and the 2 x 2 gradients of the same tile in two
//              maps, into registers
//   transform  V = B^T d B and W = A dy A^T go to shared memory, as [component][tile][channel] and
//              [tile][component][map]
//   multiply   P = W V for each of the 16 components, as in winograd_fused.cuh: maps are the rows and channels the
//              columns, and a slab has 8 tiles
//   store      the sums P go to shared memory, and a thread computes G^T P G / 4 for some maps and channels
//
// The first three are repeated for every slab of the slice. While a slab is multiplied, the next one is on its way to
// registers. Afterwards, the filters of the slices are added up in a fixed order.
#pragma once
#include "block/launch.cuh"
#include "block/slices.h"
#include "conv/gather.h"
#include "conv/winograd_products.cuh"

namespace tp::conv {

// The arguments of the kernel.
struct FusedWgrad {
  Elements<float> e;
  int down, across;                    // the tiles of an image
  int64_t map_blocks, channel_blocks;  // of a group
  int64_t slabs, slices;               // of the tiles of all images
  float* sums;                         // e.weight, or [slices][weights]
  bool pairs;                          // whether pairs of neighbouring gradients in a row can be loaded as vectors
};

// The shape of a stage: [tile][component][map], then [component][tile][channel]. The padding lets 8 tiles x 4 maps be
// written without bank conflicts.
struct WgradStage {
  static constexpr int tiles = WinogradBlock::slab, channels = WinogradBlock::tiles, maps = WinogradBlock::maps;
  static constexpr int row_pitch = winograd_tile::components * maps + 4;
  static constexpr int gradient_values = tiles * row_pitch, values = gradient_values + WinogradBlock::input_values;
  static constexpr int shared_bytes = int(sizeof(float)) * max(2 * values, WinogradBlock::sum_values);
};

// What a thread loads and transforms: of every slab, one tile of one channel and two maps. Neighbouring lanes have
// neighbouring tiles, 8 tiles of 4 channels, or if the channels of a pixel are contiguous, 32 channels of one tile.
template <bool by_channel>
class WgradInput {
  static constexpr int side = winograd_tile::side, components = winograd_tile::components,
                       outputs = winograd_tile::outputs, thread_maps = WgradStage::maps / WgradStage::channels;

 public:
  TP_DEVICE WgradInput(const FusedWgrad& work, int64_t group, int64_t map_block, int64_t channel_block, int64_t slab)
      : work_(work) {
    const Elements<float>& e = work.e;
    const int64_t first_channel = channel_block * WgradStage::channels + channel(),
                  first_map = map_block * WgradStage::maps + channel();
    x_ = e.x + (group * e.channels + first_channel) * e.x_strides.channel;
    dy_ = e.y + (group * e.maps + first_map) * e.y_strides.channel;
    has_channel_ = first_channel < e.channels;
    maps_ = int(min(e.maps - first_map, int64_t(WgradStage::maps)));
    int64_t w = slab * WgradStage::tiles + tile(), h = divide(w, work.across), image = divide(h, work.down);
    w_ = int(w), h_ = int(h), image_ = image;
  }
  // Loads the tile of the next slab, and goes on.
  TP_DEVICE void load() {
    const Elements<float>& e = work_.e;
    const int row = h_ * outputs - int(e.rows.pad), col = w_ * outputs - int(e.cols.pad);
    const int down = int(e.x_strides.row), across = by_channel ? int(e.x_strides.col) : 1;
    const bool exists = image_ < e.n;
    const float* const from = x_ + image_ * e.x_strides.image + (row * down + col * across);
#pragma unroll
    for (int i = 0; i < components; ++i) {
      const int a = i / side, b = i % side;
      const bool inside =
          exists && has_channel_ && unsigned(row + a) < unsigned(e.rows.in) && unsigned(col + b) < unsigned(e.cols.in);
      patch_.v[a][b] = inside ? from[a * down + b * across] : 0.0f;
    }
    load_gradients(exists);
    w_ += WgradStage::tiles;
    while (w_ >= work_.across) {
      w_ -= work_.across;
      if (++h_ == work_.down) h_ = 0, ++image_;
    }
  }
  // Transforms them, and stores them in a stage.
  TP_DEVICE void store(float* stage) {
    patch_.transform([](float (&v)[side]) { winograd_tile::Transforms<float>::input(v); });
    float* const to = stage + WgradStage::gradient_values + tile() * WinogradBlock::pitch + channel();
#pragma unroll
    for (int i = 0; i < components; ++i)
      to[i * WinogradBlock::slab * WinogradBlock::pitch] = patch_.v[i / side][i % side];
#pragma unroll
    for (int m = 0; m < thread_maps; ++m) {
      winograd_tile::Patch<float> gradient{};
#pragma unroll
      for (int i = 0; i < outputs * outputs; ++i) gradient.v[i / outputs][i % outputs] = gradients_[m][i];
      gradient.transform([](float (&v)[side]) { winograd_tile::Transforms<float>::gradient(v); });
      float* const rows = stage + tile() * WgradStage::row_pitch + channel() + m * WgradStage::channels;
#pragma unroll
      for (int i = 0; i < components; ++i) rows[i * WgradStage::maps] = gradient.v[i / side][i % side];
    }
  }

 private:
  TP_DEVICE void load_gradients(bool exists) {
    using Pair = block::Vector<float, 2>;
    const Elements<float>& e = work_.e;
    const int h = h_ * outputs, w = w_ * outputs;
    const int down = int(e.y_strides.row), across = by_channel ? int(e.y_strides.col) : 1;
    const float* const from = dy_ + image_ * e.y_strides.image + (h * down + w * across);
#pragma unroll
    for (int m = 0; m < thread_maps; ++m) {
      const bool has_map = exists && m * WgradStage::channels < maps_;
#pragma unroll
      for (int a = 0; a < outputs; ++a) {
        const float* const line = from + m * WgradStage::channels * e.y_strides.channel + a * down;
        const bool has_row = has_map && h + a < int(e.rows.out);
        if (work_.pairs) {
          const Pair pair = has_row ? *reinterpret_cast<const Pair*>(line) : Pair{};
          gradients_[m][a * outputs] = pair.v[0], gradients_[m][a * outputs + 1] = pair.v[1];
        } else {
          gradients_[m][a * outputs] = has_row ? line[0] : 0.0f;
          gradients_[m][a * outputs + 1] = has_row && w + 1 < int(e.cols.out) ? line[across] : 0.0f;
        }
      }
    }
  }
  TP_DEVICE static int lane() { return int(threadIdx.x) % block::warp_size; }
  TP_DEVICE static int warp() { return int(threadIdx.x) / block::warp_size; }
  TP_DEVICE static int tile() { return by_channel ? warp() : lane() % WgradStage::tiles; }
  TP_DEVICE static int channel() { return by_channel ? lane() : warp() * 4 + lane() / WgradStage::tiles; }

  const FusedWgrad& work_;
  const float *x_, *dy_;
  bool has_channel_;
  int maps_, h_, w_;
  int64_t image_;
  winograd_tile::Patch<float> patch_;
  float gradients_[thread_maps][outputs * outputs];
};

// Stores half of the maps of a block, whose sums are at `sums` as [component][channel][map].
TP_DEVICE inline void store_filters(const FusedWgrad& work, const float* sums, float* to, int64_t maps,
                                    int64_t channels) {
  using namespace winograd_tile;
  constexpr int map_lanes = WinogradBlock::threads / WgradStage::channels;
  const int channel = int(threadIdx.x) % WgradStage::channels;
  if (channel >= channels) return;
#pragma unroll 1
  for (int map = int(threadIdx.x) / WgradStage::channels; map < WinogradBlock::half && map < maps; map += map_lanes) {
    Patch<float> patch;
#pragma unroll
    for (int i = 0; i < components; ++i)
      patch.v[i / side][i % side] = sums[(i * WgradStage::channels + channel) * WinogradBlock::sum_pitch + map];
    patch.transform([](float (&v)[side]) { Transforms<float>::taps_of(v); });
    float* const filter = to + (map * work.e.channels + channel) * (taps * taps);
#pragma unroll
    for (int k = 0; k < taps * taps; ++k) filter[k] = patch.v[k / taps][k % taps] * 0.25f;
  }
}

template <bool by_channel>
__global__ void __launch_bounds__(WinogradBlock::threads, 1)
    winograd_fused_wgrad(const __grid_constant__ FusedWgrad work) {
  extern __shared__ __align__(16) unsigned char pool[];
  float* const stages = reinterpret_cast<float*>(pool);
  const Elements<float>& e = work.e;
  block::allow_next_launch();
  // The share of this block.
  int64_t map_block = blockIdx.x, channel_block = divide(map_block, work.map_blocks),
          group = divide(channel_block, work.channel_blocks), slice = divide(group, e.groups);
  const int64_t first = slice * work.slabs / work.slices, slabs = (slice + 1) * work.slabs / work.slices - first;
  // Load and transform the first slab.
  WgradInput<by_channel> input(work, group, map_block, channel_block, first);
  input.load();
  input.store(stages);
  // Multiply each slab while the next one is loaded.
  float sum[WinogradBlock::warp_components][8][8] = {};
#pragma unroll 1
  for (int slab = 0; slab < int(slabs); ++slab) {
    __syncthreads();
    const float* const stage = stages + slab % 2 * WgradStage::values;
    const bool last = slab + 1 == int(slabs);
    if (!last) input.load();
    multiply_slab<WgradStage::row_pitch>(stage, stage + WgradStage::gradient_values, sum);
    if (!last) input.store(stages + (slab + 1) % 2 * WgradStage::values);
  }
  // Store the filters. The sums lie over the stages.
  const int64_t map = map_block * WgradStage::maps, channel = channel_block * WgradStage::channels;
  float* const to = work.sums + slice * e.weights() +
                    ((group * e.maps + map) * e.channels + channel) * (winograd_tile::taps * winograd_tile::taps);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    __syncthreads();
    stage_sums(stages, sum, half);
    __syncthreads();
    const int done = half * WinogradBlock::half;
    store_filters(work, stages, to + done * e.channels * (winograd_tile::taps * winograd_tile::taps),
                  e.maps - map - done, e.channels - channel);
  }
}

// ---- the host's part

// Launches the kernels if they can compute this, and returns whether they do.
inline bool launch_winograd_fused_wgrad(const Elements<float>& e, Context& context) {
  using namespace winograd_tile;
  constexpr int64_t most = int64_t(1) << 29;  // positions in an image are counted in int
  if (!suits_kernels(e.rows) || !suits_kernels(e.cols) || max(e.x_strides.image, e.y_strides.image) >= most)
    return false;
  if (block::device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() < WgradStage::shared_bytes) return false;
  FusedWgrad work{e};
  work.down = int(ceil_div(e.rows.out, int64_t(outputs)));
  work.across = int(ceil_div(e.cols.out, int64_t(outputs)));
  work.map_blocks = ceil_div(e.maps, int64_t(WgradStage::maps));
  work.channel_blocks = ceil_div(e.channels, int64_t(WgradStage::channels));
  work.slabs = ceil_div(e.n * work.down * work.across, int64_t(WgradStage::tiles));
  work.pairs = e.y_strides.col == 1 && e.cols.out % 2 == 0 && reinterpret_cast<uintptr_t>(e.y) % 8 == 0;
  const int64_t blocks = e.groups * work.map_blocks * work.channel_blocks;
  if (blocks == 0 || work.slabs == 0 || blocks >= most) return false;
  work.slices = block::fastest_slices(blocks, work.slabs, 8, block::device_attribute<cudaDevAttrMultiProcessorCount>());
  work.sums = work.slices == 1 ? e.weight : context.workspace<float>(work.slices * e.weights());
  const bool by_channel = e.x_strides.channel == 1;
  auto kernel = by_channel ? winograd_fused_wgrad<true> : winograd_fused_wgrad<false>;
  block::allow_shared_memory(kernel, WgradStage::shared_bytes);
  kernel<<<unsigned(blocks * work.slices), WinogradBlock::threads, WgradStage::shared_bytes,
           cudaStream_t(context.stream)>>>(work);
  check_launch("winograd_fused_wgrad");
  if (work.slices > 1) block::sum_slices(work.sums, work.slices, e.weights(), e.weight, context);
  return true;
}

}  // namespace tp::conv
