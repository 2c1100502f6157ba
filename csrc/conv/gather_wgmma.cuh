// fprop and dgrad as one matrix product on the tensor cores of Hopper:
//
//   target[maps, pixels] = filters[maps, (tap, channel)] x source[(tap, channel), pixels]
//
// A block computes a tile of rows and columns of one image. For 64 channels at a time, it copies the patch of the
// source that all taps of the tile read. The rows of a patch follow each other, `pitch` pixels each, so going to
// another tap is a shift in this sequence of pixels: the right factor of a tap's product is the same patch, read from
// some pixels further on. So a patch is copied once, not once per tap. The products compute `positions` consecutive
// pixels of the sequence. Those between the end of one tile row and the beginning of the next are meaningless, and are
// dropped.
//
// Or a block computes a run of consecutive pixels of the batch. Then a patch holds only what one tap reads: more is
// copied, but no position is wasted. This suits small images, and fprop with a stride, where neighbouring outputs do
// not read neighbouring pixels.
//
// Two warps start the copies, of patches and of filters, each in a ring of stages. One or two warpgroups multiply. A
// block computes one tile after another, so that it can copy for the next tile while it stores the sums of the last
// one.
#pragma once
#include "conv/gather_splits.cuh"
#include "conv/patch_image.cuh"

namespace tp::conv {

// The two rings of stages, patches and filters, and the position of a thread in them.
enum RingBarrier { patch_full, patch_empty, filter_full, filter_empty, ring_barriers };
constexpr int most_stages = 8;

struct WgmmaRings {
  unsigned patches, filters;  // addresses
  block::Barrier (*barriers)[most_stages];
  block::Cursor patch, filter;

  // Frees the stages whose products are complete; a negative stage means none.
  TP_DEVICE void release(int used_patch, int used_filter) const {
    if (used_filter >= 0) barriers[filter_empty][used_filter].arrive();
    if (used_patch >= 0) barriers[patch_empty][used_patch].arrive();
  }
};

// The copying warps: all lanes of a warp wait for a stage, then one of them starts the copies. The first warp copies
// all patches of a share, or what the taps of a run read.
template <class T>
TP_DEVICE void copy_patches(const GatherWgmma<T>& work, const WgmmaShare& share, WgmmaRings& rings) {
  block::Cursor& patch = rings.patch;
  const CUtensorMap& source = work.sources[work.by_runs ? share.phase : 0];
  const PhasePixel first = pixel_of_tile(work, share, 0, 0);
  const int image = int(first.image), row = share.rows.first_source(int(first.h)),
            col = share.cols.first_source(int(first.w)), group = share.group * int(work.g.depth);
  TapSteps tap(share);
  const int copies = work.by_runs ? tap.count : min(tap.count, 1);
  for (int slab = share.first_slab; slab < share.last_slab; ++slab) {
    const int channel = group + slab * block::row_elements;
    for (int i = 0; i < copies; ++i) {
      block::Barrier& full = rings.barriers[patch_full][patch.stage];
      const unsigned to = rings.patches + unsigned(patch.stage * work.shape.stage_bytes);
      rings.barriers[patch_empty][patch.stage].wait(patch.parity ^ 1);
      if (block::elect_lane()) {
        block::arrive_expecting(full, work.shape.patch_bytes);
        if (work.by_runs) {
          copy_tap(source, image, row, col, channel, tap.down(), tap.across(), to, full);
        } else {
          copy_window(source, image, row, col, channel, to, full);
        }
      }
      patch.next();
      tap.next();
    }
  }
}

// The second warp copies the filters, for each tap and 64 channels of the source. fprop reads them along the rows of
// channels that they have in memory. In dgrad, whose inner dimension is that of the maps of conv2d, each of these is a
// row of what dgrad writes, and the product reads across the rows.
template <class T, class Tile, Pass pass>
TP_DEVICE void copy_filters(const GatherWgmma<T>& work, const WgmmaShare& share, WgmmaRings& rings) {
  block::Cursor& filter = rings.filter;
  if (work.keeps_filters && filter.parity > 0) return;  // this is not the first tile
  const int kernel_cols = int(work.g.cols.kernel);
  TapSteps tap(share);
  for (int slab = share.first_slab; slab < share.last_slab; ++slab) {
    const int channel = slab * block::row_elements;
    for (int i = 0; i < tap.count; ++i) {
      const int k = tap.row_tap() * kernel_cols + tap.col_tap();
      block::Barrier& full = rings.barriers[filter_full][filter.stage];
      const unsigned to = rings.filters + unsigned(filter.stage * Tile::filter_bytes);
      rings.barriers[filter_empty][filter.stage].wait(filter.parity ^ 1);
      if (block::elect_lane()) {
        block::arrive_expecting(full, Tile::filter_bytes);
        if constexpr (pass == Pass::fprop) {
          copy_window(work.filters, share.group, share.map, k, channel, to, full);
        } else {
#pragma unroll
          for (int map = 0; map < Tile::maps; map += block::row_elements) {
            copy_window(work.filters, share.group, channel, k, share.map + map, to + unsigned(map * block::row_bytes),
                        full);
          }
        }
      }
      filter.next();
      tap.next();
    }
  }
}

// Computes the sums of a warpgroup.
template <class T, class Tile, Pass pass>
TP_DEVICE void multiply_patches(const GatherWgmma<T>& work, const WgmmaShare& share, WgmmaRings& rings, int group,
                                float (&sum)[Tile::sums]) {
  const PatchShape& shape = work.shape;
  const bool frees = threadIdx.x % 32 == 0;  // one thread of each warp
  constexpr bool along = pass == Pass::fprop;
  block::Cursor &patch = rings.patch, &filter = rings.filter;
  const TapShifts shifts(share, work);
  const int steps = (share.last_slab - share.first_slab) * shifts.taps, patch_taps = work.by_runs ? 1 : shifts.taps;
  if (steps == 0) {  // in a phase in which no tap contributes
#pragma unroll
    for (float& value : sum) value = 0;
  }
  int used_patch = -1, used_filter = -1;  // the stages that running products read
  int taps_left = 0, across_left = 0, shift = 0;
#pragma unroll 1
  for (int i = 0; i < steps; ++i) {
    // At the first tap of a patch, wait until it has arrived.
    if (taps_left == 0) {
      rings.barriers[patch_full][patch.stage].wait(patch.parity);
      taps_left = patch_taps;
      across_left = shifts.across_taps;
      shift = shifts.first;
    }
    // Wait for the filters of the tap, and start the products, 16 channels at a time: these are 32 bytes of each row of
    // filters in fprop, and 16 rows of them in dgrad.
    // Filters that stay have arrived in the first round, and no other round ends.
    rings.barriers[filter_full][filter.stage].wait(work.keeps_filters ? 0 : filter.parity);
    const unsigned pixels = rings.patches + unsigned(patch.stage * shape.stage_bytes + shift * block::row_bytes),
                   maps = rings.filters + unsigned(filter.stage * Tile::filter_bytes + group * 64 * block::row_bytes);
    block::begin_products();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      block::multiply_tiles<T, along, true>(sum,
                                            block::factor_at(maps + unsigned(k * (along ? 32 : 16 * block::row_bytes))),
                                            block::factor_at(pixels + unsigned(k * 32)), i > 0 || k > 0);
    }
    block::commit_products();
    // Now the products of the previous tap are complete, and the stages that they read are free.
    block::wait_for_products<1>();
    if (frees) rings.release(used_patch, used_filter);
    if (!work.keeps_filters) used_filter = filter.stage;
    filter.next();
    shift += shifts.across;
    if (--across_left == 0) {
      across_left = shifts.across_taps;
      shift += shifts.down;
    }
    used_patch = -1;
    if (--taps_left == 0) {
      used_patch = patch.stage;
      patch.next();
    }
  }
  block::wait_for_products<0>();
  if (frees) rings.release(used_patch, used_filter);
}

// Whether a sum of dgrad may contain a product that does not exist: an infinite or NaN weight times the zero beyond an
// edge, which is NaN. Few sums are not finite, so only then the weights of the group are looked at. The multiplying
// warps call it together.
template <class T, class Tile>
TP_DEVICE bool has_odd_weights(const GatherWgmma<T>& work, int group, bool finite) {
  if (!block::any_of_warps(1, Tile::warps, !finite)) return false;
  const T* const weights = work.g.weight + group * work.g.group_stride;
  bool odd = false;
#pragma unroll 8
  for (int64_t i = int(threadIdx.x); i < work.g.group_stride; i += Tile::warps * 32) {
    odd = odd || !is_finite(acc_t<T>(weights[i]));
  }
  return block::any_of_warps(1, Tile::warps, odd);
}

// If they do, the block computes its tile from the products that exist, one by one. Afterwards warps are whole again,
// as the products of the next tile need them.
template <class T, class Tile>
TP_DEVICE void store_plain_share(const GatherWgmma<T>& work, const WgmmaShare& share) {
  const Gather<T>& g = work.g;
#pragma unroll 1
  for (int i = int(threadIdx.x); i < share.tile_rows * share.tile_cols * Tile::maps; i += Tile::warps * 32) {
    const int col = i % share.tile_cols, row = i / share.tile_cols % share.tile_rows;
    const int64_t map = share.map + i / share.tile_cols / share.tile_rows;
    if (map >= g.maps) break;
    const PhasePixel at = pixel_of_tile(work, share, row, col);
    const auto sum = g.plain_sum(share.rows, share.cols, at.image, share.group, map, at.h, at.w);
    g.target[g.target_strides.at(at.image, share.group * g.maps + map, share.rows.target(at.h),
                                 share.cols.target(at.w))] = T(sum);
  }
  __syncwarp();
}

template <class T, class Tile, Pass pass>
__global__ void __launch_bounds__(Tile::threads, Tile::together)
    gather_wgmma(const __grid_constant__ GatherWgmma<T> work) {
#if TP_WGMMA
  extern __shared__ __align__(1024) unsigned char stages[];
  __shared__ block::Barrier barriers[ring_barriers][most_stages], received;
  const unsigned patches = block::shared_address(stages);
  unsigned filters = patches + unsigned(work.patch_stages * work.shape.stage_bytes);
  // Hides the value, or the compiler would compute it again for each tap.
  asm volatile("" : "+r"(filters));
  WgmmaRings rings{patches, filters, barriers, block::Cursor(work.patch_stages), block::Cursor(work.filter_stages)};
  // Initialize the barriers: each of the first warps those of a ring. The shuffle shows the compiler that all lanes of
  // a warp have the same `warp`.
  const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0);
  static_assert(ring_barriers <= Tile::warps);
  if (warp < ring_barriers) {
    if (block::elect_lane()) {
      const bool is_full = warp == patch_full || warp == filter_full;
      const int count = warp == patch_full || warp == patch_empty ? work.patch_stages : work.filter_stages;
      for (int i = 0; i < count; ++i) barriers[warp][i].init(is_full ? 1 : Tile::warps);
      if (warp == 0) received.init(1);
      block::publish_barriers();
    }
    __syncwarp();
    block::arrive_warps(2 + warp / 2, 3);  // the warp that copies patches waits at barrier 2, the other one at 3
  }
  // The copying warps wait for that when they have found their first tile.
  if (warp >= Tile::warps) {
    const auto ready = [&] {
      block::sync_warps(2 + warp - Tile::warps, 3);
      block::allow_next_launch();
      block::wait_for_launch_before();
    };
    if (warp == Tile::warps) {
      if (block::elect_lane()) block::prefetch_map(work.sources[0]);
      for_tiles<Tile>(work, ready, [&](const WgmmaShare& share) { copy_patches(work, share, rings); });
    } else {
      if (block::elect_lane()) block::prefetch_map(work.filters);
      for_tiles<Tile>(work, ready, [&](const WgmmaShare& share) { copy_filters<T, Tile, pass>(work, share, rings); });
    }
    return;
  }
  // The multiplying warpgroups: compute a tile, then store it by way of shared memory.
  const int group = warp / 4;
  unsigned char* const data = stages + work.image;
  const auto ready = [] {
    block::sync_warps(1, Tile::warps);
    block::wait_for_launch_before();
  };
  for_tiles<Tile>(work, ready, [&](const WgmmaShare& share) {
    float sum[Tile::sums];
    multiply_patches<T, Tile, pass>(work, share, rings, group, sum);
    if constexpr (Tile::can_split) {
      if (work.splits > 1) return add_up_splits<T, Tile, pass>(work, share, sum, stages, received);
    }
    const WgmmaImage<T, Tile> image(work, share, data);
    if constexpr (pass == Pass::dgrad) {
      if (has_odd_weights<T, Tile>(work, share.group, image.sums_are_finite(sum))) {
        return store_plain_share<T, Tile>(work, share);
      }
    }
    // Wait until the image of the previous tile has been stored, then write that of this one.
    if (threadIdx.x == 0) block::wait_for_stores();
    __syncwarp();
    block::sync_warps(1, Tile::warps);
    image.set(group, sum);
    block::sync_warps(1, Tile::warps);
    image.store(int(threadIdx.x));
    __syncwarp();  // threads without pixels get here early, but products need whole warps
  });
  if (threadIdx.x == 0) block::wait_for_stores();
#endif
}

// ---- the host's part

// The shared memory of a Hopper multiprocessor, and what each block needs besides the stages: 1,024 bytes for the
// system, and the barriers.
constexpr int shared_memory = 228 * 1024, block_memory = 2 * 1024;

// Whether clusters of `splits` blocks can compute all tiles at once. Both passes need the same resources.
template <class T, class Tile>
bool runs_at_once(const GatherWgmma<T>& work, int splits) {
  const int64_t multiprocessors = block::device_attribute<cudaDevAttrMultiProcessorCount>();
  if (splits == 1 || work.tiles() * splits > multiprocessors) return splits == 1;
  return work.tiles() <= block::clusters_at_once(gather_wgmma<T, Tile, Pass::fprop>, Tile::threads,
                                                 shared_memory - block_memory - 1024, splits);
}

template <class Tile, class T>
int ring_bytes(const GatherWgmma<T>& work) {
  return work.patch_stages * work.shape.stage_bytes + work.filter_stages * Tile::filter_bytes;
}

// Chooses the shape of the tiles and the number of stages, with the largest patches that fit. Returns false if nothing
// fits.
template <class T, class Tile>
bool shape_tiles(GatherWgmma<T>& work) {
  const Gather<T>& g = work.g;
  const bool strided = g.pass == Pass::fprop && (g.rows.stride > 1 || g.cols.stride > 1);
  if (!work.by_runs && strided) return false;
  work.slabs = int(ceil_div(g.depth, int64_t(block::row_elements)));
  work.map_blocks = ceil_div(g.maps, int64_t(Tile::maps));
  for (int most_bytes = 88 * 1024; most_bytes > 0; most_bytes -= 8 * 1024) {
    const bool fits = work.by_runs ? cut_into_runs(work, Tile::positions, work.shape)
                                   : cut_into_patches(g, Tile::positions, most_bytes, work.shape);
    if (!fits) return false;
    // A patch becomes free when the products of the next one have begun. A tile with a single patch needs only one
    // stage. Beyond that, the rings should hold the factors of as many taps as possible.
    const int64_t taps = work.by_runs ? 1 : g.rows.kernel * g.cols.kernel;
    const bool one_patch = work.slabs == 1 && taps == g.rows.kernel * g.cols.kernel;
    // The image of a tile has memory of its own only if the block goes on to another tile.
    const int64_t multiprocessors = block::device_attribute<cudaDevAttrMultiProcessorCount>();
    const int together = work.tiles() <= multiprocessors ? 1 : Tile::together, image = WgmmaImage<T, Tile>::bytes(work);
    const bool is_last = work.tiles() <= multiprocessors * together;
    const int room = shared_memory / together - block_memory - (is_last ? 0 : image);
    const auto filters_beside = [&](int patches) {
      return min((room - patches * work.shape.stage_bytes) / Tile::filter_bytes, most_stages);
    };
    const auto taps_held = [&](int patches) { return min(patches * taps, int64_t(filters_beside(patches))); };
    work.patch_stages = one_patch ? 1 : 2;
    while (work.patch_stages < most_stages && taps_held(work.patch_stages + 1) > taps_held(work.patch_stages)) {
      ++work.patch_stages;
    }
    work.filter_stages = filters_beside(work.patch_stages);
    // All tiles have the same filters if they differ in their pixels alone. Then these may fit, and are copied once.
    const int64_t all_filters = work.slabs * g.rows.kernel * g.cols.kernel;
    work.keeps_filters = !is_last && work.map_blocks * g.groups * work.row_phases * work.col_phases == 1 &&
                         all_filters <= work.filter_stages;
    if (work.keeps_filters) work.filter_stages = int(all_filters);
    work.image = is_last ? 0 : ring_bytes<Tile>(work);
    if ((work.filter_stages >= 2 || work.keeps_filters) && image <= room) return true;
    if (work.by_runs) return false;
  }
  return false;
}

// A map of the targets of a phase, for boxes of a tile.
template <class T>
CUtensorMap target_map(const GatherWgmma<T>& work, const GatherAxis& rows, const GatherAxis& cols) {
  const Gather<T>& g = work.g;
  T* const first = g.target + g.target_strides.at(0, 0, rows.first, cols.first);
  Strides steps = g.target_strides;
  steps.row *= rows.step, steps.col *= cols.step;
  const BatchMap batch(steps, g.n, g.groups * g.maps, rows.outputs, cols.outputs, sizeof(T));
  if (!work.by_runs) return window_map(first, batch, work.shape.rows, work.shape.cols);
  const auto itself = [](const GatherAxis& a) { return Axis{a.outputs, a.outputs, 1, 1, 0, 1}; };
  return tap_map(first, batch, itself(rows), itself(cols), work.shape.cols);
}

template <class T, class Tile, Pass pass>
void launch_gather_wgmma(GatherWgmma<T>& work, const GatherGemm<T>& packed, const ChannelsLast<T>& source,
                         Context& context) {
  require(shape_tiles<T, Tile>(work), "implicit_gemm: no tiles");
  const Gather<T>& g = work.g;
  const BatchMap images(source, g.n, source.col, work.rows[0].sources, work.cols[0].sources, sizeof(T));
  const bool fprop = pass == Pass::fprop;
  const BatchMap filters(packed.filter_strides, g.groups, packed.width, fprop ? g.maps : g.depth,
                         g.rows.kernel * g.cols.kernel, sizeof(T));
  work.filters = window_map(packed.filters, filters, fprop ? Tile::maps : block::row_elements, 1);
  if (!work.by_runs) work.sources[0] = window_map(source.data, images, work.shape.patch_rows, work.shape.pitch);
  for (int64_t phase = 0; phase < min(work.row_phases * work.col_phases, most_mapped_phases); ++phase) {
    const PhaseAxis &rows = work.rows[phase / work.col_phases], &cols = work.cols[phase % work.col_phases];
    if (work.by_runs) {
      work.sources[phase] = tap_map(source.data, images, tap_axis(rows), tap_axis(cols), work.shape.cols);
    }
    if (work.stores_boxes) work.targets[phase] = target_map(work, rows, cols);
  }
  work.split_slabs = ceil_div(work.slabs, work.splits);
  work.tile_count = int(work.tiles());
  work.one_row = 65535 / work.shape.pitch + 1;
  work.by_map_block = Divisor(work.map_blocks);
  work.by_across = Divisor(work.shape.tiles_across);
  work.by_down = Divisor(work.shape.tiles_down);
  work.by_image = Divisor(work.shape.images);
  work.by_col_phase = Divisor(work.col_phases);
  work.by_row_phase = Divisor(work.row_phases);
  int bytes = max(ring_bytes<Tile>(work), work.image + WgmmaImage<T, Tile>::bytes(work));
  if (work.splits > 1) bytes = max(bytes, SplitSums<Tile>::bytes(work.splits));
  // One block per tile wherever shape_tiles() relies on it, so both must ask the same device.
  const int64_t multiprocessors = block::device_attribute<cudaDevAttrMultiProcessorCount>();
  const int64_t clusters = min(work.tiles(), multiprocessors * Tile::together);
  block::allow_shared_memory(gather_wgmma<T, Tile, pass>, bytes);
  block::launch_clusters(gather_wgmma<T, Tile, pass>, dim3(unsigned(work.splits), unsigned(clusters)), work.splits,
                         Tile::threads, bytes, context, work);
  check_launch("implicit_gemm");
}

}  // namespace tp::conv
