// wgrad as one matrix product on the tensor cores of Hopper:
//
//   dw[maps, (tap, channel)] = dy^T[maps, pixels] x x[pixels, (tap, channel)]
//
// The inner dimension is all pixels of the batch, in slabs. Both factors store the channels of a pixel next to each
// other, and are read across the rows. The columns are divided into units, each of which is 64 channels, or fewer,
// under one tap. There are two kinds of tiles, which differ in what a slab is and how it is copied: wgrad_patches.cuh
// is for filters of 3 x 3, wgrad_taps.cuh for all.
//
// A block computes a tile of dw over one slice of the slabs. The blocks of a cluster have slices of the same tile, and
// add up their sums (wgrad_sums.cuh), or a second kernel does (wgrad_slices.cuh). Some warps start the copies, in a
// ring of stages, because starting one takes long. The warpgroups multiply, each a part of the tile.
#pragma once
#include "conv/wgrad_patches.cuh"
#include "conv/wgrad_slices.cuh"
#include "conv/wgrad_taps.cuh"

namespace tp::conv {

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, 1) wgrad_wgmma(const __grid_constant__ WgradWgmma<T> work) {
#if TP_WGMMA
  extern __shared__ __align__(1024) unsigned char pool[];
  __shared__ block::Barrier full[Tile::most_stages], empty[Tile::most_stages];
  // Initialize the barriers, and find the share of the block. The shuffle shows the compiler that all lanes of a warp
  // have the same `warp`.
  const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0);
  if (warp < 2 && block::elect_lane()) {
    for (int i = 0; i < work.stages; ++i) {
      warp == 0 ? full[i].init(Tile::copiers) : empty[i].init(Tile::warps);
    }
    block::publish_barriers();
  }
  if (warp == Tile::warps && block::elect_lane()) {
    block::prefetch_map(work.dy);
    block::prefetch_map(work.x);
  }
  const UnitShare share = UnitShare::of<Tile>(work);
  __syncthreads();
  block::allow_next_launch();
  block::wait_for_launch_before();
  const unsigned stages = block::shared_address(pool);
  // The copying warps: one lane of each starts the copies.
  if (warp >= Tile::warps) {
    block::leave_registers<Tile::few_registers>();
    const int copier = warp - Tile::warps;
    if (copier >= Tile::copiers || !block::elect_lane()) return;
    if constexpr (Tile::has_patches) {
      copy_patches<T, Tile>(work, share, stages, full, empty, copier);
    } else {
      copy_slabs<T, Tile>(work, share, stages, full, empty, copier);
    }
    return;
  }
  // The multiplying warpgroups: compute the sums, then add them up or store them.
  block::take_registers<Tile::registers>();
  const int group = warp / 4;
  const int first_block = group / Tile::unit_groups * Tile::blocks_each,
            first = group % Tile::unit_groups * Tile::units_each;
  UnitTileSums<Tile> sum;
  if constexpr (Tile::has_patches) {
    multiply_patches<T, Tile>(work, share, stages, full, empty, group, sum);
  } else {
    multiply_slabs<T, Tile>(share, stages, full, empty, first_block, first, sum);
  }
  block::sync_warps(1, Tile::warps);  // until all products have read the stages, which the sums replace
  if (work.is_whole && work.slices == 1) {
    return store_filters<Tile>(work, share, reinterpret_cast<uint16_t*>(pool), first_block, first, sum);
  }
  float* const sums = reinterpret_cast<float*>(pool);
  write_sums<Tile>(sums, first_block, first, sum);
  if (work.is_whole) return add_up_cluster<Tile>(work, share, sums);
  if constexpr (Tile::channels == block::row_elements) store_sums<Tile>(work, share, sums);
#endif
}

// ---- the host's part

// The most blocks of a cluster, and the most shared memory of a block without its barriers.
constexpr int most_cluster = 8, most_memory = 225 * 1024;
constexpr double never = std::numeric_limits<double>::infinity();

// How many slices a tile has, whether their blocks are a cluster that writes dw, and how many cycles dw then takes.
struct WgradPlan {
  double cycles;
  int slices;
  bool is_whole;
};

// Divides dw into tiles, and the inner dimension into slabs.
template <class T, class Tile>
WgradWgmma<T> divide_wgrad(const Elements<T>& e) {
  WgradWgmma<T> work(e, Tile::channels);
  Tile::cut(work);
  work.map_blocks = int(ceil_div(e.maps, int64_t(Tile::blocks * 64)));
  work.unit_blocks = ceil_div(work.units, Tile::units);
  work.by_map_block = Divisor(work.map_blocks);
  return work;
}

// Finds the plan that takes the least time on an H200. The costs were fitted to measurements of 30 layers with batches
// of 1 to 64, with a cold cache (h200_conv_kernels.md).
template <class T, class Tile>
WgradPlan plan_wgrad(const Elements<T>& e) {
  using Sums = UnitSums<Tile>;
  const WgradWgmma<T> work = divide_wgrad<T, Tile>(e);
  const int tiles = work.groups * work.map_blocks * work.unit_blocks,
            multiprocessors = block::device_attribute<cudaDevAttrMultiProcessorCount>();
  const int64_t pixels_in = e.rows.in * e.cols.in, pixels_out = e.rows.out * e.cols.out;
  const double operands = double(e.n * e.groups * (e.channels * pixels_in + e.maps * pixels_out)) * sizeof(T);
  WgradPlan best{never};
  // The first block of a multiprocessor takes 5,600 cycles to begin, a later one 2,600. All together read so many bytes
  // per cycle from memory, and nine tenths of that overlap with their products. Then a block stores its part of dw, or
  // its cluster adds up the sums and does so, or it stores the sums, which a second kernel adds up.
  const auto consider = [&](int slices, bool is_whole) {
    const int rounds = ceil_div(tiles * slices, multiprocessors);
    const double busy = min(1.0, double(tiles) * slices / multiprocessors),
                 products = rounds * ceil_div(work.slabs, slices) * Tile::cycles(work, busy), memory = operands / 1700,
                 slabs = max(products, memory) + min(products, memory) / 10, sums = Sums::bytes,
                 end = !is_whole    ? 320 + sums / 55
                       : slices > 1 ? 2100 + sums / 62 + sums * (slices - 1) / slices / 14.5
                                    : 830 + sums / 35,
                 second = is_whole ? 0 : 5200 + tiles * slices * sums / 1700,
                 cycles = 5600 + (rounds - 1) * 2600 + slabs + rounds * end + second;
    if (cycles >= best.cycles) return;
    if (is_whole && slices > 1) {
      const auto kernel = wgrad_wgmma<T, Tile>;
      if (tiles > block::clusters_at_once(kernel, Tile::threads, most_memory, slices)) return;
    }
    best = {cycles, slices, is_whole};
  };
  const int most = max(1, min(multiprocessors / tiles, work.slabs));
  for (int slices = most; slices > 0 && Tile::channels == block::row_elements; slices /= 2) consider(slices, false);
  // A cluster can write dw if a tile has all taps of its channels.
  if (work.taps > 1 && work.taps != Tile::units) return best;
  for (int slices = 1; slices <= min(most_cluster, most); ++slices) consider(slices, true);
  return best;
}

template <class T, class Tile>
void launch_wgrad_wgmma(const Elements<T>& e, const WgradPlan& plan, const ChannelsLast<T>& x,
                        const ChannelsLast<T>& dy, Context& context) {
  WgradWgmma<T> work = divide_wgrad<T, Tile>(e);
  Tile::map_operands(work, x, dy);
  work.x_group = int(x.group);
  work.dy_group = int(dy.group);
  work.slices = plan.slices;
  work.slabs_each = work.slabs / plan.slices;
  work.extra = work.slabs % plan.slices;
  work.is_whole = plan.is_whole;
  if (!work.is_whole) work.sums = context.workspace<float>(work.slices * work.sums_per_slice());
  const int bytes = max(work.stages * work.stage_bytes, UnitSums<Tile>::bytes);
  const dim3 blocks(unsigned(work.slices), unsigned(work.unit_blocks), unsigned(work.map_blocks * work.groups));
  block::allow_shared_memory(wgrad_wgmma<T, Tile>, bytes);
  block::launch_clusters(wgrad_wgmma<T, Tile>, blocks, work.cluster(), Tile::threads, bytes, context, work);
  check_launch("implicit_gemm");
  if (!work.is_whole) add_up_slices(work, context);
}

}  // namespace tp::conv
