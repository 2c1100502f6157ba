// Winograd's F(2 x 2, 3 x 3) (winograd.cu) in one kernel, without transformed images in memory, for filters of 3 x 3
// with stride and dilation 1 in float32, on CUDA.
//
// A block computes 64 maps of 32 tiles of 2 x 2 outputs, in four steps:
//
//   load       a thread reads the 4 x 4 inputs of one tile and channel into registers
//   transform  V = B^T d B goes to shared memory, as [component][channel][tile]
//   multiply   M = U V for each of the 16 components: a warp has two components, and all their sums in registers
//   store      the sums M go to shared memory, and a thread computes A^T M A / 4 + bias for some maps and tiles
//
// The first three are repeated for every slab of 8 channels. While a slab is multiplied, the inputs of the next one are
// on their way to registers, and its transformed filters U to shared memory; after the last slab, these are the first
// ones of what the block computes next. If there is too little for all blocks, several of them share the channels, and
// their sums are added up in a fixed order.
//
// A lane has 8 x 8 sums per component, for which it reads 16 values per channel, as in a matrix product
// (block/fma_tile.cuh). Per slab, a block issues 8192 FMAs in 2048 cycles, and about 1700 other instructions; shared
// memory is busy for about 1400 cycles.
#pragma once
#include "block/fma_tile.cuh"
#include "block/launch.cuh"
#include "block/pipeline.cuh"
#include "block/slices.cuh"
#include "conv/lattice.h"
#include "conv/winograd_transforms.h"

namespace tp::conv {

// The shape of a block. A warp multiplies two of the 16 components.
struct WinogradBlock {
  static constexpr int warp_components = 2, warps = winograd_tile::components / warp_components;
  static constexpr int maps = 64, tiles = 32, threads = warps * block::warp_size;
  static constexpr int slab = threads / tiles;  // the channels of a slab: a thread has one of them, and one tile
  // One component as a matrix product: its rows are maps, its columns tiles. The padding lets 8 channels x 4 tiles be
  // written without bank conflicts.
  static constexpr int pitch = tiles + 4;
  using Product = block::FmaTile<maps, tiles, 8, 8, slab, 2, 1, 4, warps>;
  static constexpr int filter_values = slab * winograd_tile::components * maps,
                       input_values = winograd_tile::components * slab * pitch,
                       stage_values = filter_values + input_values;
  // Half of the sums, as [component][tile][map]. The padding lets quads of maps be written without bank conflicts.
  static constexpr int half = maps / 2, sum_pitch = half + 4,
                       sum_values = winograd_tile::components * tiles * sum_pitch;
  static constexpr int shared_bytes = int(sizeof(float)) * (2 * stage_values + sum_values);
};

// The arguments of the kernel.
struct FusedWinograd {
  Gather<float> g;
  // U[group][map block][channel][component][map], with zeros for channels and maps that do not exist.
  const float* filters;
  boolean* noted;                  // whether an output is not finite
  int64_t row_origin, col_origin;  // the source element that tap 0 of output 0 reads
  int64_t down, across;            // the tiles of an image
  int64_t map_blocks, slabs;
  int64_t slices;  // blocks that share the channels of a tile; if there are several, a second kernel adds up their sums
  int64_t units;   // the shares of all blocks
  float* sums;     // g.target, or [slices][target]
  float terms;     // if outputs are finite even when multiplied by this, so is the sum of the slices
  bool pairs;      // whether pairs of neighbouring outputs in a row can be stored as vectors

  TP_HD int64_t tiles() const { return g.n * down * across; }
  TP_HD int64_t rows() const { return g.pass == Pass::dgrad ? g.rows.in : g.rows.out; }
  TP_HD int64_t cols() const { return g.pass == Pass::dgrad ? g.cols.in : g.cols.out; }
  TP_HD int64_t target_size() const { return g.n * g.groups * g.maps * rows() * cols(); }
  TP_HD int64_t source_rows() const { return g.pass == Pass::dgrad ? g.rows.out : g.rows.in; }
  TP_HD int64_t source_cols() const { return g.pass == Pass::dgrad ? g.cols.out : g.cols.in; }
};

// U = 4 G g G^T. One thread per channel and map, of padded numbers of both.
__global__ void __launch_bounds__(256) winograd_pack_filters(const FusedWinograd work, float* packed) {
  using namespace winograd_tile;
  block::allow_next_launch();
  const Gather<float>& g = work.g;
  const int64_t depth = work.slabs * WinogradBlock::slab;
  int64_t map = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (map == 0) *work.noted = boolean(false);
  int64_t channel = divide(map, int64_t(WinogradBlock::maps)), map_block = divide(channel, depth),
          group = divide(map_block, work.map_blocks);
  if (group >= g.groups) return;
  float* const to =
      packed + (((group * work.map_blocks + map_block) * depth + channel) * components) * WinogradBlock::maps + map;
  map += map_block * WinogradBlock::maps;
  Patch<float> patch{};
  if (map < g.maps && channel < g.depth) {
    const bool reversed = g.pass == Pass::dgrad;
    const float* const from = g.weight + g.weight_at(group, map, channel, 0, 0);
#pragma unroll
    for (int k = 0; k < taps * taps; ++k) patch.v[k / taps][k % taps] = from[reversed ? taps * taps - 1 - k : k];
  }
  patch.transform([](float (&v)[side]) { Transforms<float>::filter(v); });
#pragma unroll
  for (int component = 0; component < components; ++component)
    to[component * WinogradBlock::maps] = patch.v[component / side][component % side];
}

// A tile of a block: where its inputs and outputs begin in channel 0, and which of them exist, as bits.
struct WinogradTileAt {
  int64_t source, target;
  unsigned inputs, outputs;
};

TP_DEVICE inline WinogradTileAt winograd_tile_at(const FusedWinograd& work, int64_t tile) {
  using namespace winograd_tile;
  if (tile >= work.tiles()) return {};
  int64_t w = tile, h = divide(w, work.across), image = divide(h, work.down);
  h *= outputs, w *= outputs;
  const int64_t row = work.row_origin + h, col = work.col_origin + w;
  WinogradTileAt at{work.g.source_strides.at(image, 0, row, col), work.g.target_strides.at(image, 0, h, w), 0, 0};
  for (int i = 0; i < components; ++i) {
    const int64_t y = row + i / side, x = col + i % side;
    if (y >= 0 && y < work.source_rows() && x >= 0 && x < work.source_cols()) at.inputs |= 1u << i;
  }
  for (int i = 0; i < outputs * outputs; ++i) {
    if (h + i / outputs < work.rows() && w + i % outputs < work.cols()) at.outputs |= 1u << i;
  }
  return at;
}

// What a block computes at once: some maps of some tiles, from the slabs of one slice.
struct WinogradShare {
  WinogradTileAt tiles[WinogradBlock::tiles];
  const float* filters;       // of the first slab
  int64_t source, target;     // the offsets of the first channel and the first map
  int64_t bias;               // the index of the first map's bias, or -1
  int channels, slabs, maps;  // how many there are
  int col;                    // the distance between columns of the source
};

// Describes share `unit` of the work. All threads of a block call it.
TP_DEVICE inline void find_share(const FusedWinograd& work, int64_t unit, WinogradShare& share) {
  const Gather<float>& g = work.g;
  int64_t map_block = unit, group = divide(map_block, work.map_blocks), slice = divide(group, g.groups),
          tile_block = divide(slice, work.slices);
  const int t = int(threadIdx.x);
  if (t < WinogradBlock::tiles) share.tiles[t] = winograd_tile_at(work, tile_block * WinogradBlock::tiles + t);
  if (t != WinogradBlock::tiles) return;
  const int64_t first = slice * work.slabs / work.slices, end = (slice + 1) * work.slabs / work.slices,
                map = group * g.maps + map_block * WinogradBlock::maps;
  share.filters =
      work.filters + ((group * work.map_blocks + map_block) * work.slabs + first) * WinogradBlock::filter_values;
  share.source = (group * g.depth + first * WinogradBlock::slab) * g.source_strides.channel;
  share.target = slice * work.target_size() + map * g.target_strides.channel;
  share.bias = g.bias && slice == 0 ? map : -1;
  share.channels = int(g.depth - first * WinogradBlock::slab);
  share.slabs = int(end - first);
  share.maps = int(min(g.maps - map_block * WinogradBlock::maps, int64_t(WinogradBlock::maps)));
  share.col = int(g.source_strides.col);
}

// The part of the inputs that a thread loads and transforms: one tile, and one channel of every slab. Neighbouring
// lanes have neighbouring tiles, or if the channels of a pixel are contiguous, 8 channels of each of 4 tiles.
template <bool by_channel>
class WinogradInput {
  static constexpr int side = winograd_tile::side, components = winograd_tile::components;

 public:
  TP_DEVICE explicit WinogradInput(const Gather<float>& g)
      : deep_(WinogradBlock::slab * g.source_strides.channel), down_(g.source_strides.row) {}

  // Goes to the first slab of a share.
  TP_DEVICE void begin(const Gather<float>& g, const WinogradShare& share) {
    const WinogradTileAt& at = share.tiles[tile()];
    inputs_ = at.inputs;
    channels_ = share.channels - channel();
    col_ = by_channel ? share.col : 1;
    rows_[0] = g.source + at.source + share.source + channel() * g.source_strides.channel;
#pragma unroll
    for (int i = 1; i < side; ++i) rows_[i] = rows_[i - 1] + down_;
  }
  // Loads the inputs of the next slab.
  TP_DEVICE void load() {
    const unsigned inputs = channels_ > 0 ? inputs_ : 0;
#pragma unroll
    for (int i = 0; i < components; ++i) {
      patch_.v[i / side][i % side] = inputs >> i & 1 ? rows_[i / side][i % side * col_] : 0.0f;
    }
    channels_ -= WinogradBlock::slab;
#pragma unroll
    for (int i = 0; i < side; ++i) rows_[i] += deep_;
  }
  // Transforms them, and stores them as to[component][channel][tile].
  TP_DEVICE void store(float* to) {
    patch_.transform([](float (&v)[side]) { winograd_tile::Transforms<float>::input(v); });
    to += channel() * WinogradBlock::pitch + tile();
#pragma unroll
    for (int i = 0; i < components; ++i)
      to[i * WinogradBlock::slab * WinogradBlock::pitch] = patch_.v[i / side][i % side];
  }

 private:
  static constexpr int tile_groups = WinogradBlock::tiles / 4;
  TP_DEVICE static int lane() { return int(threadIdx.x) % block::warp_size; }
  TP_DEVICE static int warp() { return int(threadIdx.x) / block::warp_size; }
  TP_DEVICE static int tile() { return by_channel ? warp() % tile_groups * 4 + lane() / 8 : lane(); }
  TP_DEVICE static int channel() { return by_channel ? warp() / tile_groups * 8 + lane() % 8 : warp(); }

  const int64_t deep_, down_;
  int channels_;  // how many channels are left from this thread's channel on
  int col_;
  unsigned inputs_;
  const float* rows_[side];
  winograd_tile::Patch<float> patch_;
};

// Starts to copy the filters of a slab, which are contiguous; `barrier` waits for them.
TP_DEVICE inline void copy_filters(block::Barrier& barrier, float* to, const float* from) {
  constexpr int bytes = WinogradBlock::filter_values * int(sizeof(float));
  block::copy_units(barrier, to, from, bytes, int(threadIdx.x), WinogradBlock::threads);
  if (threadIdx.x == 0) barrier.arrive();
}

// Adds the products of a slab for the components of this thread's warp. The values of a channel are `row_pitch` apart
// in the left factor, [channel][component][map], and the right one is [component][channel][tile].
template <int row_pitch>
TP_DEVICE void multiply_slab(const float* left, const float* right,
                             float (&sum)[WinogradBlock::warp_components][8][8]) {
  using Product = WinogradBlock::Product;
  constexpr int steps = WinogradBlock::slab * WinogradBlock::warp_components, unrolled = 8;
  const int component = int(threadIdx.x) / block::warp_size * WinogradBlock::warp_components;
  const float* rows = left + component * WinogradBlock::maps + Product::row(0);
  const float* cols = right + component * WinogradBlock::slab * WinogradBlock::pitch + Product::col(0);
  block::FmaFragment<Product, float> fragments[2];
  fragments[0].load(rows, cols);
#pragma unroll 1
  for (int first = 0; first < steps; first += unrolled) {
#pragma unroll
    for (int i = 0; i < unrolled; ++i) {
      if (i + 1 < unrolled || first + unrolled < steps) {
        const int k = (i + 1) / WinogradBlock::warp_components, p = (i + 1) % WinogradBlock::warp_components;
        fragments[(i + 1) % 2].load(rows + k * row_pitch + p * WinogradBlock::maps,
                                    cols + (p * WinogradBlock::slab + k) * WinogradBlock::pitch);
      }
      fragments[i % 2].add_to(sum[i % WinogradBlock::warp_components]);
    }
    rows += unrolled / WinogradBlock::warp_components * row_pitch;
    cols += unrolled / WinogradBlock::warp_components * WinogradBlock::pitch;
  }
}

// Writes the sums of a thread for half of the maps as [component][tile][map].
TP_DEVICE inline void stage_sums(float* to, const float (&sum)[WinogradBlock::warp_components][8][8], int half) {
  using Product = WinogradBlock::Product;
  using Quad = block::Vector<float, 4>;
  const int component = int(threadIdx.x) / block::warp_size * WinogradBlock::warp_components;
#pragma unroll
  for (int p = 0; p < WinogradBlock::warp_components; ++p) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      Quad quad;
#pragma unroll
      for (int i = 0; i < 4; ++i) quad.v[i] = half ? sum[p][4 + i][j] : sum[p][i][j];
      const int tile = Product::col(j / 4) + j % 4;
      *reinterpret_cast<Quad*>(to + ((component + p) * WinogradBlock::tiles + tile) * WinogradBlock::sum_pitch +
                               Product::row(0)) = quad;
    }
  }
}

// Transforms the sums of one map and tile and writes up to 2 x 2 outputs, or for one slice what it adds to them.
// Returns zero if all are finite, otherwise NaN.
TP_DEVICE inline float store_outputs(const FusedWinograd& work, const float* sums, unsigned exists, float shift,
                                     float* to) {
  using namespace winograd_tile;
  using Pair = block::Vector<float, 2>;
  const Strides& strides = work.g.target_strides;
  Patch<float> patch;
#pragma unroll
  for (int i = 0; i < components; ++i)
    patch.v[i / side][i % side] = sums[i * WinogradBlock::tiles * WinogradBlock::sum_pitch];
  patch.transform([](float (&v)[side]) { Transforms<float>::output(v); });
  float odd = 0;
#pragma unroll
  for (int a = 0; a < outputs; ++a) {
    Pair pair;
#pragma unroll
    for (int b = 0; b < outputs; ++b) {
      pair.v[b] = patch.v[a][b] * 0.25f + shift;
      odd += (pair.v[b] * work.terms) * 0.0f;
    }
    const unsigned both = exists >> (a * outputs);
    float* const row = to + a * strides.row;
    if (work.pairs) {
      if (both & 1) *reinterpret_cast<Pair*>(row) = pair;
    } else {
      if (both & 1) row[0] = pair.v[0];
      if (both & 2) row[strides.col] = pair.v[1];
    }
  }
  return odd;
}

// Stores half of the maps of a share, whose sums are at `sums`. A warp has 32 maps of a tile, or 4 maps of 8 tiles,
// whichever is contiguous in the target. Returns zero if all outputs are finite, otherwise NaN.
template <bool by_channel>
TP_DEVICE float store_half(const FusedWinograd& work, const WinogradShare& share, const float* sums, int half) {
  constexpr int rounds = WinogradBlock::half * WinogradBlock::tiles / WinogradBlock::threads,
                map_lanes = by_channel ? 32 : 4, tile_lanes = 32 / map_lanes;
  constexpr int tile_warps = by_channel ? WinogradBlock::warps : WinogradBlock::tiles / tile_lanes,
                map_warps = WinogradBlock::warps / tile_warps;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  float odd = 0;
#pragma unroll
  for (int i = 0; i < rounds; ++i) {
    const int map = lane % map_lanes + (by_channel ? 0 : (i * map_warps + warp / tile_warps) * map_lanes);
    const int tile = warp % tile_warps * tile_lanes + lane / map_lanes + (by_channel ? i * tile_warps : 0);
    const int at = half * WinogradBlock::half + map;
    if (at >= share.maps) continue;
    odd += store_outputs(work, sums + tile * WinogradBlock::sum_pitch + map, share.tiles[tile].outputs,
                         share.bias < 0 ? 0.0f : work.g.bias[share.bias + at],
                         work.sums + share.target + share.tiles[tile].target + at * work.g.target_strides.channel);
  }
  return odd;
}

template <bool by_channel>
__global__ void __launch_bounds__(WinogradBlock::threads, 1)
    winograd_fused(const __grid_constant__ FusedWinograd work) {
  extern __shared__ __align__(16) unsigned char pool[];
  float *const stages = reinterpret_cast<float*>(pool), *const sums = stages + 2 * WinogradBlock::stage_values;
  __shared__ WinogradShare shares[2];
  __shared__ block::Barrier arrived[2];
  const int t = int(threadIdx.x);
  int64_t unit = blockIdx.x;
  find_share(work, unit, shares[0]);
  if (t < 2) arrived[t].init(1);
  __syncthreads();
  // Load and transform the first slab.
  WinogradInput<by_channel> input(work.g);
  input.begin(work.g, shares[0]);
  input.load();
  block::wait_for_launch_before();
  copy_filters(arrived[0], stages, shares[0].filters);
  input.store(stages + WinogradBlock::filter_values);
  // Multiply each slab while the next one is loaded, which may be the first one of the next share.
  float sum[WinogradBlock::warp_components][8][8] = {};
  float odd = 0;
  int slab = 0;
#pragma unroll 1
  for (int step = 0, n = 0;; ++step) {
    const WinogradShare& share = shares[n % 2];
    WinogradShare& following = shares[(n + 1) % 2];
    const bool last = slab + 1 == share.slabs, ends = last && unit + gridDim.x >= work.units;
    __syncthreads();
    if (slab == 0) find_share(work, unit + gridDim.x, following);
    if (last && slab == 0) __syncthreads();
    float* const stage = stages + step % 2 * WinogradBlock::stage_values;
    float* const next = stages + (step + 1) % 2 * WinogradBlock::stage_values;
    if (!ends) {
      copy_filters(arrived[(step + 1) % 2], next,
                   last ? following.filters : share.filters + (slab + 1) * WinogradBlock::filter_values);
      if (last) input.begin(work.g, following);
      input.load();
    }
    arrived[step % 2].wait(step / 2 % 2);
    multiply_slab<winograd_tile::components * WinogradBlock::maps>(stage, stage + WinogradBlock::filter_values, sum);
    if (!ends) input.store(next + WinogradBlock::filter_values);
    ++slab;
    if (!last) continue;
    // Store the share.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half > 0) __syncthreads();
      stage_sums(sums, sum, half);
      __syncthreads();
      odd += store_half<by_channel>(work, share, sums, half);
    }
    if (ends) break;
#pragma unroll
    for (int i = 0; i < WinogradBlock::warp_components * 64; ++i) sum[i / 64][i / 8 % 8][i % 8] = 0;
    slab = 0;
    ++n;
    unit += gridDim.x;
  }
  if (odd != 0.0f) *work.noted = boolean(true);
}

// ---- the host's part

// Launches the kernels if they can compute this, and returns whether they do. They set `noted`.
inline bool launch_winograd(const Gather<float>& g, boolean* noted, Context& context) {
  using namespace winograd_tile;
  constexpr int64_t most = int64_t(1) << 29;  // positions in an image are counted in int
  const auto fits = [](const Axis& a) {
    return a.kernel == taps && a.stride == 1 && a.dilation == 1 && a.pad < most && a.in < most && a.out < most;
  };
  if (!fits(g.rows) || !fits(g.cols) || g.source_strides.image >= most || g.depth == 0) return false;
  if (block::device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() < WinogradBlock::shared_bytes + 2048) {
    return false;
  }
  const LatticeAxis rows(gather_axis(g.rows, g.pass, 0), 0, taps), cols(gather_axis(g.cols, g.pass, 0), 0, taps);
  FusedWinograd work{g, nullptr, noted, rows.origin, cols.origin};
  work.down = ceil_div(rows.outputs(), int64_t(outputs));
  work.across = ceil_div(cols.outputs(), int64_t(outputs));
  work.map_blocks = ceil_div(g.maps, int64_t(WinogradBlock::maps));
  work.slabs = ceil_div(g.depth, int64_t(WinogradBlock::slab));
  work.pairs = g.target_strides.col == 1 && cols.outputs() % 2 == 0 && reinterpret_cast<uintptr_t>(g.target) % 8 == 0;
  const int64_t packed = g.groups * work.map_blocks * work.slabs * WinogradBlock::slab * WinogradBlock::maps;
  const int64_t blocks = ceil_div(work.tiles(), int64_t(WinogradBlock::tiles)) * g.groups * work.map_blocks;
  if (blocks == 0 || blocks >= most) return false;
  // As many slices as keep all multiprocessors busy, but at least two slabs per slice.
  const int64_t multiprocessors = block::device_attribute<cudaDevAttrMultiProcessorCount>();
  work.slices = max(int64_t(1), min(multiprocessors / blocks, work.slabs / 2));
  work.units = blocks * work.slices;
  work.terms = work.slices == 1 ? 1.0f : 2.0f * float(work.slices);  // twice, because the sum of the slices is rounded
  work.sums = work.slices == 1 ? g.target : context.workspace<float>(work.slices * work.target_size());
  float* const filters = context.workspace<float>(packed * components);
  work.filters = filters;
  winograd_pack_filters<<<unsigned(ceil_div(packed, int64_t(256))), 256, 0, cudaStream_t(context.stream)>>>(work,
                                                                                                            filters);
  check_launch("winograd_pack_filters");
  const bool by_channel = g.source_strides.channel == 1;
  auto kernel = by_channel ? winograd_fused<true> : winograd_fused<false>;
  block::allow_shared_memory(kernel, WinogradBlock::shared_bytes);
  block::launch_early(kernel, dim3(unsigned(min(work.units, multiprocessors))), WinogradBlock::threads,
                      WinogradBlock::shared_bytes, context, work);
  check_launch("winograd_fused");
  if (work.slices > 1) block::sum_slices(work.sums, work.slices, work.target_size(), g.target, context);
  return true;
}

}  // namespace tp::conv
