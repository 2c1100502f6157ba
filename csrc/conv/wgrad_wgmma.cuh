// wgrad as one matrix product on the tensor cores of Hopper:
//
//   dw[maps, (tap, channel)] = dy^T[maps, pixels] x x[pixels, (tap, channel)]
//
// The inner dimension is all pixels of the batch, in slabs. Both factors store the channels of a pixel next to each
// other, and are read across the rows. The columns are divided into units, each of which is 64 channels, or fewer,
// under one tap. There are two kinds of tiles, which differ in what a slab is and how it is copied: wgrad_patches.cuh
// is for filters of 3 x 3 and 5 x 5, wgrad_taps.cuh for all.
//
// A block computes a tile of dw over one slice of the slabs. The blocks of a cluster have slices of the same tile, and
// add up their sums (wgrad_sums.cuh), or a second kernel does (wgrad_slices.cuh). If there are more tiles than blocks
// can run at once, a block computes one tile after another, and copies for the next one while it stores the last one.
// Some warps start the copies, in a ring of stages, because starting one takes long. The warpgroups multiply, each a
// part of the tile.
#pragma once
#include "conv/wgrad_patches.cuh"
#include "conv/wgrad_slices.cuh"
#include "conv/wgrad_taps.cuh"

namespace tp::conv {

template <class T, class Tile, bool goes_on>
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
    if (Tile::has_patches) block::prefetch_map(work.dw);
  }
  const UnitShare first_share = UnitShare::of<Tile>(work, int(blockIdx.y));
  block::Cursor cursor(work.stages);
  __syncthreads();
  block::allow_next_launch();
  block::wait_for_launch_before();
  const unsigned stages = block::shared_address(pool);
  // The copying warps: one lane of each starts the copies.
  if (warp >= Tile::warps) {
    block::leave_registers<Tile::few_registers>();
    const int copier = warp - Tile::warps;
    if (copier >= Tile::copiers || !block::elect_lane()) return;
    return for_shares<Tile, goes_on>(work, first_share, [&](const UnitShare& share) {
      if constexpr (Tile::has_patches) {
        copy_patches<T, Tile>(work, share, stages, full, empty, cursor, copier);
      } else {
        copy_slabs<T, Tile>(work, share, stages, full, empty, cursor, copier);
      }
    });
  }
  // The multiplying warpgroups: compute the sums, then add them up or store them.
  block::take_registers<Tile::registers>();
  const int group = warp / 4;
  const int first_block = group / Tile::unit_groups * Tile::blocks_each,
            first = group % Tile::unit_groups * Tile::units_each;
  for_shares<Tile, goes_on>(work, first_share, [&](const UnitShare& share) {
    UnitTileSums<Tile> sum;
    if constexpr (Tile::has_patches) {
      multiply_patches<T, Tile>(work, share, stages, full, empty, cursor, group, sum);
    } else {
      multiply_slabs<T, Tile>(share, stages, full, empty, cursor, first_block, first, sum);
    }
    // Until stores have read an earlier tile, or all products the stages, which the sums replace.
    if constexpr (goes_on) block::wait_for_stores();
    block::sync_warps(1, Tile::warps);
    if (goes_on || (work.is_whole && work.slices == 1)) {
      return store_filters<Tile>(work, share, pool + (goes_on ? work.image : 0), first_block, first, sum);
    }
    float* const sums = reinterpret_cast<float*>(pool);
    write_sums<Tile>(sums, first_block, first, sum);
    work.is_whole ? add_up_cluster<Tile>(work, share, sums) : store_sums<Tile>(work, share, sums);
  });
  block::wait_for_stores();
#endif
}

// ---- the host's part

// The most blocks of a cluster; the most shared memory of a block without its barriers, and of its stages.
constexpr int most_cluster = 8, most_memory = 225 * 1024, stage_memory = 220 * 1024;
constexpr double never = std::numeric_limits<double>::infinity();

inline int multiprocessors() { return block::device_attribute<cudaDevAttrMultiProcessorCount>(); }

// Whether a tile has all taps of its channels, so that what it has of a map follows each other in dw.
template <class Tile, class T>
bool has_all_taps(const WgradWgmma<T>& work) {
  return work.taps == 1 || work.taps == Tile::units;
}

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
  const int map_blocks = int(ceil_div(e.maps, int64_t(Tile::blocks * 64))),
            unit_blocks = ceil_div(work.units, Tile::units);
  work.tiles = work.groups * map_blocks * unit_blocks;
  work.by_unit_block = Divisor(unit_blocks);
  work.by_map_block = Divisor(map_blocks);
  // A tile has memory of its own only if the block goes on to another tile.
  const bool goes_on = Tile::can_go_on && has_all_taps<Tile>(work) && work.tiles > multiprocessors();
  Tile::cut(work, stage_memory - (goes_on ? FilterImage<Tile>::bytes : 0));
  work.image = goes_on ? work.stages * work.stage_bytes : 0;
  return work;
}

// Finds the plan that takes the least time on an H200. The costs were fitted to measurements of 42 layers with batches
// of 1 to 64, with a cold cache (h200_conv_kernels.md).
template <class T, class Tile>
WgradPlan plan_wgrad(const Elements<T>& e) {
  using Sums = UnitSums<Tile>;
  const WgradWgmma<T> work = divide_wgrad<T, Tile>(e);
  const int tiles = work.tiles;
  // What the kernel reads from memory, what it reads again from the cache, and what it writes.
  const int64_t pixels_in = e.rows.in * e.cols.in, pixels_out = e.rows.out * e.cols.out;
  const double operands = double(e.n * e.groups * (e.channels * pixels_in + e.maps * pixels_out)) * sizeof(T),
               again = max(0.0, double(tiles) * work.slabs * Tile::copied(work) - operands),
               filters = double(e.m * e.channels * work.taps) * sizeof(T),
               memory = operands / 3200 + again / 6500 + filters / 3000, sums = Sums::bytes;
  // The longer one of products and memory, and a fifth of the other one.
  const auto together = [&](double products) { return max(products, memory) + min(products, memory) / 5; };
  WgradPlan best{never};
  // The first block of a multiprocessor takes 5,600 cycles to begin, a later one 2,600. Then a block stores its part of
  // dw, or its cluster adds up the sums and does so, or it stores the sums, which a second kernel adds up. Blocks that
  // go on write one tile after another to shared memory.
  const auto consider = [&](int slices, bool is_whole) {
    const int rounds = ceil_div(tiles * slices, multiprocessors());
    const double busy = min(1.0, double(tiles) * slices / multiprocessors()),
                 products = ceil_div(work.slabs, slices) * Tile::cycles(work, busy),
                 end = !is_whole    ? 300 + sums / 130
                       : slices > 1 ? 2300 + sums / 76 + sums * (slices - 1) / slices / 11.6
                                    : 510 + sums / 32,
                 second = is_whole ? 0 : 6600 + tiles * slices * sums / 1830,
                 cycles = 5600 + (work.image > 0
                                      ? together(rounds * (products + 1300 + sums / 39))
                                      : (rounds - 1) * 2600 + together(rounds * products) + rounds * end + second);
    if (cycles >= best.cycles) return;
    if (is_whole && slices > 1) {
      if (Sums::bytes_of(slices) > most_memory) return;
      const auto kernel = wgrad_wgmma<T, Tile, false>;
      if (tiles > block::clusters_at_once(kernel, Tile::threads, most_memory, slices)) return;
    }
    best = {cycles, slices, is_whole};
  };
  const int most = max(1, min(multiprocessors() / tiles, work.slabs));
  for (int slices = most; slices > 0 && work.image == 0; slices /= 2) consider(slices, false);
  for (int slices = 1; slices <= min(most_cluster, most) && has_all_taps<Tile>(work); ++slices) consider(slices, true);
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
  const auto start = [&](auto kernel, int tiles, int bytes) {
    const dim3 blocks(unsigned(work.slices), unsigned(tiles));
    block::allow_shared_memory(kernel, bytes);
    block::launch_clusters(kernel, blocks, work.cluster(), Tile::threads, bytes, context, work);
  };
  if (work.image == 0) {
    start(wgrad_wgmma<T, Tile, false>, work.tiles,
          max(work.stages * work.stage_bytes, UnitSums<Tile>::bytes_of(work.cluster())));
  } else {
    start(wgrad_wgmma<T, Tile, Tile::can_go_on>, multiprocessors(), work.image + FilterImage<Tile>::bytes);
  }
  check_launch("implicit_gemm");
  if (!work.is_whole) add_up_slices(work, context);
}

}  // namespace tp::conv
