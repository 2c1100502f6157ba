// Winograd's F(2 x 2, 3 x 3) (winograd.cu) in one kernel, without transformed images in memory, for filters of 3 x 3
// with stride and dilation 1 in float32, on Hopper.
//
// A block computes 64 maps of 32 tiles of 2 x 2 outputs, in four steps:
//
//   load       a thread reads the 4 x 4 inputs of one tile and channel into registers
//   transform  V = B^T d B goes to shared memory, as [component][channel][tile]
//   multiply   M = U V for each of the 16 components: a warp has two components, and all their sums in registers
//   store      the sums M go to shared memory, and a thread computes A^T M A / 4 + bias for some maps and tiles
//
// One warpgroup loads and transforms, and also starts to copy the transformed filters U; two warpgroups multiply and
// store. They exchange stages of 8 channels ("slabs") through a ring in shared memory, and the loading warpgroup goes
// on to what the block computes next while the others still store. The products need more registers than 384 threads
// can have, so the loading warpgroup leaves some of its own to the others, which only Hopper can do (setmaxnreg). If
// there is too little for all blocks, several of them share the channels, and their sums are added up in a fixed order.
//
// Per slab, a block issues 8192 FMAs of a warp, which take 2048 cycles at least.
#pragma once
#include "block/launch.cuh"
#include "block/pipeline.cuh"
#include "block/slices.h"
#include "block/tensor_map.cuh"
#include "block/wgmma.cuh"
#include "conv/lattice.h"
#include "conv/winograd_products.cuh"

namespace tp::conv {

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

// Describes share `unit` of the work. All threads of the warpgroup that loads call it.
TP_DEVICE inline void find_share(const FusedWinograd& work, int64_t unit, WinogradShare& share) {
  const Gather<float>& g = work.g;
  int64_t map_block = unit, group = divide(map_block, work.map_blocks), slice = divide(group, g.groups),
          tile_block = divide(slice, work.slices);
  const int t = int(threadIdx.x) % block::warpgroup;
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

// The inputs that a thread loads and transforms: of every slab, part `part` of 256, which is one channel of one tile.
// Neighbouring lanes have neighbouring tiles, or if the channels of a pixel are contiguous, 8 channels of each of 4
// tiles.
template <bool by_channel>
class WinogradInput {
  static constexpr int side = winograd_tile::side, components = winograd_tile::components;

 public:
  TP_DEVICE WinogradInput(const Gather<float>& g, int part)
      : lane_(part % block::warp_size),
        group_(part / block::warp_size),
        deep_(WinogradBlock::slab * g.source_strides.channel),
        down_(g.source_strides.row) {}

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
  TP_DEVICE int tile() const { return by_channel ? group_ % tile_groups * 4 + lane_ / 8 : lane_; }
  TP_DEVICE int channel() const { return by_channel ? lane_ % 8 : group_; }

  const int lane_, group_;
  const int64_t deep_, down_;
  int channels_;  // how many channels are left from this thread's channel on
  int col_;
  unsigned inputs_;
  const float* rows_[side];
  winograd_tile::Patch<float> patch_;
};

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

// What the warpgroups of a block exchange.
struct WinogradExchange {
  static constexpr int stages = 3, multiplying = 2 * block::warpgroup, threads = 3 * block::warpgroup;
  static constexpr int shared_bytes =
      int(sizeof(float)) * (stages * WinogradBlock::stage_values + WinogradBlock::sum_values);
  // Together they are at most the 65,536 registers of a multiprocessor.
  static constexpr int loading_registers = 88, multiplying_registers = 208;

  WinogradShare shares[2];
  block::Barrier full[stages], empty[stages];
  block::Barrier stored[2];  // the share before the last one, whose description is then free

  TP_DEVICE void init() {
    for (auto& barrier : full) barrier.init(block::warpgroup);
    for (auto& barrier : empty) barrier.init(WinogradBlock::warps);
    for (auto& barrier : stored) barrier.init(WinogradBlock::warps);
    block::publish_barriers();
  }
};

// The warpgroup that loads: describes each share, and fills a stage for each of its slabs.
template <bool by_channel>
TP_DEVICE void load_shares(const FusedWinograd& work, WinogradExchange& exchange, float* stages) {
  constexpr int filter_bytes = WinogradBlock::filter_values * int(sizeof(float));
  const int thread = int(threadIdx.x) % block::warpgroup;
  WinogradInput<by_channel> one(work.g, thread), two(work.g, thread + block::warpgroup);
  block::Cursor cursor(WinogradExchange::stages), turn(2);
#pragma unroll 1
  for (int64_t unit = blockIdx.x; unit < work.units; unit += gridDim.x, turn.next()) {
    exchange.stored[turn.stage].wait(turn.parity ^ 1);
    WinogradShare& share = exchange.shares[turn.stage];
    find_share(work, unit, share);
    block::sync_warps(1, block::warpgroup / block::warp_size);
    one.begin(work.g, share);
    two.begin(work.g, share);
    one.load();
    two.load();
    const float* filters = share.filters;
    const int slabs = share.slabs;
#pragma unroll 1
    for (int slab = 0; slab < slabs; ++slab, cursor.next()) {
      float* const stage = stages + cursor.stage * WinogradBlock::stage_values;
      block::Barrier& full = exchange.full[cursor.stage];
      exchange.empty[cursor.stage].wait(cursor.parity ^ 1);
      block::wait_for_launch_before();  // which packed the filters
      block::copy_units(full, stage, filters, filter_bytes, thread, block::warpgroup);
      filters += WinogradBlock::filter_values;
      one.store(stage + WinogradBlock::filter_values);
      two.store(stage + WinogradBlock::filter_values);
      full.arrive();
      one.load();
      two.load();
    }
  }
}

// The warpgroups that multiply: add up the products of each share, and store its outputs. Returns zero if all are
// finite, otherwise NaN.
template <bool by_channel>
TP_DEVICE float multiply_shares(const FusedWinograd& work, WinogradExchange& exchange, const float* stages,
                                float* sums) {
  const auto arrive = [](block::Barrier& barrier) {
    __syncwarp();
    if (threadIdx.x % block::warp_size == 0) barrier.arrive();
  };
  block::Cursor cursor(WinogradExchange::stages), turn(2);
  float odd = 0;
#pragma unroll 1
  for (int64_t unit = blockIdx.x; unit < work.units; unit += gridDim.x, turn.next()) {
    float sum[WinogradBlock::warp_components][8][8] = {};
    exchange.full[cursor.stage].wait(cursor.parity);  // the share has been described, too
    const WinogradShare& share = exchange.shares[turn.stage];
    const int slabs = share.slabs;
#pragma unroll 1
    for (int slab = 0; slab < slabs; ++slab, cursor.next()) {
      exchange.full[cursor.stage].wait(cursor.parity);
      const float* const stage = stages + cursor.stage * WinogradBlock::stage_values;
      multiply_slab<winograd_tile::components * WinogradBlock::maps>(stage, stage + WinogradBlock::filter_values, sum);
      arrive(exchange.empty[cursor.stage]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      block::sync_warps(2, WinogradBlock::warps);
      stage_sums(sums, sum, half);
      block::sync_warps(2, WinogradBlock::warps);
      odd += store_half<by_channel>(work, share, sums, half);
    }
    arrive(exchange.stored[turn.stage]);
  }
  return odd;
}

template <bool by_channel>
__global__ void __launch_bounds__(WinogradExchange::threads, 1)
    winograd_fused(const __grid_constant__ FusedWinograd work) {
#if TP_WGMMA
  extern __shared__ __align__(16) unsigned char pool[];
  float* const stages = reinterpret_cast<float*>(pool);
  __shared__ WinogradExchange exchange;
  if (threadIdx.x == 0) exchange.init();
  __syncthreads();
  if (threadIdx.x >= WinogradExchange::multiplying) {
    block::leave_registers<WinogradExchange::loading_registers>();
    return load_shares<by_channel>(work, exchange, stages);
  }
  block::take_registers<WinogradExchange::multiplying_registers>();
  float* const sums = stages + WinogradExchange::stages * WinogradBlock::stage_values;
  if (multiply_shares<by_channel>(work, exchange, stages, sums) != 0.0f) *work.noted = boolean(true);
#endif
}

// ---- the host's part

// Launches the kernels if they can compute this, and returns whether they do. They set `noted`.
inline bool launch_winograd_fused(const Gather<float>& g, boolean* noted, Context& context) {
  using namespace winograd_tile;
  constexpr int64_t most = int64_t(1) << 29;  // positions in an image are counted in int
  if (!suits_kernels(g.rows) || !suits_kernels(g.cols) || g.source_strides.image >= most || g.depth == 0) return false;
  if (!block::has_wgmma(winograd_fused<false>)) return false;
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
  block::allow_shared_memory(kernel, WinogradExchange::shared_bytes);
  block::launch_early(kernel, dim3(unsigned(min(work.units, multiprocessors))), WinogradExchange::threads,
                      WinogradExchange::shared_bytes, context, work);
  check_launch("winograd_fused");
  if (work.slices > 1) block::sum_slices(work.sums, work.slices, work.target_size(), g.target, context);
  return true;
}

}  // namespace tp::conv
