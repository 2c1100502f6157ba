// fprop and dgrad as one matrix product on a Hopper's tensor cores:
//
//   target[pixels, maps] = source[pixels, (tap, channel)] x filters[(tap, channel), maps]
//
// A block computes a tile of rows and columns of one image. For 64 channels at a time, it copies the patch of the
// source that all taps of the tile read: its rows lie one behind the other, `pitch` pixels each. In that order of
// pixels a tap is a shift. So the left factor of a tap's product is the same patch, read from some pixels further on:
// it comes into shared memory once, not once per tap. The products compute `positions` neighbouring pixels of that
// order; those between the end of a tile's row and the next row come to nothing and are dropped.
//
// Where neighbouring outputs do not read neighbouring pixels (fprop with a stride), a patch holds what one tap reads.
//
// One warp starts the copies of patches and filters, each in a ring of stages; two warpgroups multiply. A block
// computes one tile after the other, so that it copies for the next one while it stores the sums of the last.
#pragma once
#include "conv/divisor.h"
#include "conv/gather_gemm.cuh"
#include "conv/tensor_map.cuh"

namespace tp::conv {

// `positions` pixels by `maps` maps, in `blocks` blocks of 64 pixels for each of two warpgroups.
template <int positions_, int maps_>
struct WgmmaTile {
  static constexpr int positions = positions_, maps = maps_, groups = 2, blocks = positions / 64 / groups;
  static constexpr int warps = groups * 4, filter_bytes = maps * row_bytes;
  static constexpr int together = positions * maps <= 128 * 128 ? 2 : 1;  // blocks on a multiprocessor
  // A block that is alone has as many warps that copy, so that they can leave their registers to the others.
  static constexpr int threads = warps * 32 + (together == 1 ? warpgroup : 32), registers = 216, few_registers = 40;
};

constexpr int64_t most_phases = 4;

// How a phase's targets are cut into tiles, and what a patch holds.
struct PatchShape {
  bool by_tap;            // a patch per tap
  int rows, cols, pitch;  // of a tile; pixels from one row to the next
  int patch_rows, patch_bytes, stage_bytes;
  int64_t tiles_down, tiles_across;
};

template <class T>
struct GatherWgmma {
  Gather<T> g;
  CUtensorMap source, filters, target;
  PatchShape shape;
  bool stores_boxes;  // whether `target` describes the target
  const int* odd;
  int64_t row_phases, col_phases, map_blocks;
  GatherAxis rows[most_phases], cols[most_phases];  // of each phase
  // A tile's number counts blocks of maps, then tiles of an image, images, phases, groups.
  Divisor by_map_block{1}, by_across{1}, by_down{1}, by_image{1}, by_col_phase{1}, by_row_phase{1};
  int slabs, patch_stages, filter_stages;
  TP_HD int64_t tiles() const {
    return g.groups * row_phases * col_phases * g.n * shape.tiles_down * shape.tiles_across * map_blocks;
  }
};

// A tile: `tile_rows` x `tile_cols` targets of one phase of one image, for one block of maps of one group.
struct WgmmaShare {
  const GatherAxis &rows, &cols;
  int group, map, image, row, col, tile_rows, tile_cols;
};

template <class T>
TP_DEVICE WgmmaShare wgmma_share(const GatherWgmma<T>& work, int tile, int tile_maps) {
  int map_block = tile, across = work.by_map_block.divide(map_block), down = work.by_across.divide(across),
      image = work.by_down.divide(down), col_phase = work.by_image.divide(image),
      row_phase = work.by_col_phase.divide(col_phase), group = work.by_row_phase.divide(row_phase);
  const GatherAxis &rows = work.rows[row_phase], &cols = work.cols[col_phase];
  const int row = down * work.shape.rows, col = across * work.shape.cols;
  return {rows,
          cols,
          group,
          map_block * tile_maps,
          image,
          row,
          col,
          min(work.shape.rows, int(rows.outputs) - row),
          min(work.shape.cols, int(cols.outputs) - col)};
}

// f(share) for all tiles of a block; in a short phase some do not exist.
template <class Tile, class T, class F>
TP_DEVICE void for_tiles(const GatherWgmma<T>& work, const F& f) {
  const int tiles = int(work.tiles());
  for (int tile = int(blockIdx.x); tile < tiles; tile += int(gridDim.x)) {
    const WgmmaShare share = wgmma_share(work, tile, Tile::maps);
    if (share.tile_rows > 0 && share.tile_cols > 0) f(share);
  }
}

// The taps of a share, one after the other. A tap shifts the patch by `down` and `across`, none of them negative.
class TapSteps {
 public:
  const int count;

  TP_DEVICE explicit TapSteps(const WgmmaShare& share)
      : count(int(share.rows.taps * share.cols.taps)), down_(share.rows), across_(share.cols) {}
  TP_DEVICE int down() const { return p_ * down_.step - down_.least; }
  TP_DEVICE int across() const { return q_ * across_.step - across_.least; }
  TP_DEVICE int row_tap() const { return down_.first + p_ * down_.every; }
  TP_DEVICE int col_tap() const { return across_.first + q_ * across_.every; }
  TP_DEVICE bool first() const { return p_ == 0 && q_ == 0; }
  TP_DEVICE void next() {
    if (++q_ < across_.taps) return;
    q_ = 0;
    if (++p_ == down_.taps) p_ = 0;
  }

 private:
  struct Steps {
    int taps, step, least, first, every;
    TP_DEVICE explicit Steps(const GatherAxis& a)
        : taps(int(a.taps)),
          step(int(a.source_tap)),
          least(min(0, (taps - 1) * step)),
          first(int(a.first_tap)),
          every(int(a.tap_step)) {}
  };
  const Steps down_, across_;
  int p_ = 0, q_ = 0;
};

// The same for the threads that multiply, in few registers: by how many pixels a tap shifts the patch.
struct TapShifts {
  int taps, across_taps, first, across, down;  // from one tap to the next, and besides from one row to the next
  TP_DEVICE TapShifts(const WgmmaShare& share, const PatchShape& shape)
      : taps(int(share.rows.taps * share.cols.taps)), across_taps(int(share.cols.taps)) {
    const int pitch = shape.by_tap ? 0 : shape.pitch, pixel = shape.by_tap ? 0 : 1;
    const int row_step = int(share.rows.source_tap) * pitch, col_step = int(share.cols.source_tap) * pixel;
    first = -min(0, (int(share.rows.taps) - 1) * row_step) - min(0, (across_taps - 1) * col_step);
    across = col_step;
    down = row_step - across_taps * col_step;
  }
};

// The rings of stages: patches, then filters; and where a thread stands in them.
enum RingBarrier { patch_full, patch_empty, filter_full, filter_empty, ring_barriers };
constexpr int most_stages = 8;

struct WgmmaRings {
  unsigned patches, filters;  // addresses
  block::Barrier (*barriers)[most_stages];
  block::Cursor patch, filter;

  // Stages whose products are complete; negative for none.
  TP_DEVICE void release(int used_patch, int used_filter) const {
    if (used_filter >= 0) barriers[filter_empty][used_filter].arrive();
    if (used_patch >= 0) barriers[patch_empty][used_patch].arrive();
  }
};

// Copies all patches and filters of a share; for one thread.
template <class T, class Tile>
TP_DEVICE void copy_factors(const GatherWgmma<T>& work, const WgmmaShare& share, WgmmaRings& rings) {
  block::Cursor &patch = rings.patch, &filter = rings.filter;
  const Gather<T>& g = work.g;
  const PatchShape& shape = work.shape;
  const int row = int(share.rows.source(share.row, 0) + min(int64_t(0), (share.rows.taps - 1) * share.rows.source_tap));
  const int col = int(share.cols.source(share.col, 0) + min(int64_t(0), (share.cols.taps - 1) * share.cols.source_tap));
  const int taps = int(g.rows.kernel * g.cols.kernel), kernel_cols = int(g.cols.kernel), maps = int(g.maps);
  TapSteps tap(share);
  for (int slab = 0; slab < work.slabs; ++slab) {
    for (int i = 0; i < tap.count; ++i, tap.next()) {
      if (shape.by_tap || tap.first()) {
        block::Barrier& full = rings.barriers[patch_full][patch.stage];
        rings.barriers[patch_empty][patch.stage].wait(patch.parity ^ 1);
        expect_bytes(full, shape.patch_bytes);
        copy_window(work.source, share.image, row + (shape.by_tap ? tap.down() : 0),
                    col + (shape.by_tap ? tap.across() : 0), share.group * int(g.depth) + slab * row_elements,
                    rings.patches + unsigned(patch.stage * shape.stage_bytes), full);
        full.arrive();
        patch.next();
      }
      block::Barrier& full = rings.barriers[filter_full][filter.stage];
      rings.barriers[filter_empty][filter.stage].wait(filter.parity ^ 1);
      expect_bytes(full, Tile::filter_bytes);
      const int line = (share.group * taps + tap.row_tap() * kernel_cols + tap.col_tap()) * maps + share.map;
      copy_matrix(work.filters, line, slab * row_elements, rings.filters + unsigned(filter.stage * Tile::filter_bytes),
                  full);
      full.arrive();
      filter.next();
    }
  }
}

// Computes the sums of a warpgroup: Tile::blocks blocks of 64 positions by all maps of the tile.
template <class T, class Tile>
TP_DEVICE void multiply_patches(const GatherWgmma<T>& work, const WgmmaShare& share, WgmmaRings& rings, int group,
                                float (&sum)[Tile::blocks][Tile::maps / 2]) {
  const PatchShape& shape = work.shape;
  const bool frees = threadIdx.x % 32 == 0;  // one thread of each warp
  block::Cursor &patch = rings.patch, &filter = rings.filter;
  const TapShifts shifts(share, shape);
  const int steps = work.slabs * shifts.taps, patch_taps = shape.by_tap ? 1 : shifts.taps;
  int used_patch = -1, used_filter = -1;  // by the products under way
  int taps_left = 0, across_left = 0, shift = 0;
#pragma unroll 1
  for (int i = 0; i < steps; ++i) {
    if (taps_left == 0) {
      rings.barriers[patch_full][patch.stage].wait(patch.parity);
      taps_left = patch_taps;
      across_left = shifts.across_taps;
      shift = shifts.first;
    }
    rings.barriers[filter_full][filter.stage].wait(filter.parity);
    const unsigned left = rings.patches +
                          unsigned(patch.stage * shape.stage_bytes + (shift + group * Tile::blocks * 64) * row_bytes),
                   right = rings.filters + unsigned(filter.stage * Tile::filter_bytes);
    begin_products();
#pragma unroll
    for (int k = 0; k < row_bytes; k += 32) {
#pragma unroll
      for (int b = 0; b < Tile::blocks; ++b) {
        multiply_tiles<T, true>(sum[b], factor_at(left + unsigned(b * 64 * row_bytes + k)), factor_at(right + k),
                                i > 0 || k > 0);
      }
    }
    commit_products();
    // The products of the tap before are complete: what they read is free.
    wait_for_products<1>();
    if (frees) rings.release(used_patch, used_filter);
    used_filter = filter.stage;
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
  wait_for_products<0>();
  if (frees) rings.release(used_patch, used_filter);
}

// The tile on its way to the target, in shared memory. Its pixels lie without gaps: as boxes of 64 maps that one
// instruction stores, or as [pixel][map], or as [map][pixel] where the target lies so.
template <class T, class Tile>
class WgmmaImage {
 public:
  static constexpr int vector = 16 / int(sizeof(T)), pixel_pitch = Tile::maps + vector,
                       map_pitch = Tile::positions + vector;

  static int bytes(const GatherWgmma<T>& work) {
    if (work.stores_boxes) return Tile::maps / 64 * box_bytes(work.shape);
    const bool by_pixel = work.g.target_strides.channel == 1;
    return int(sizeof(T)) * (by_pixel ? (Tile::positions + 1) * pixel_pitch : Tile::maps * map_pitch);
  }

  TP_DEVICE WgmmaImage(const GatherWgmma<T>& work, const WgmmaShare& share, unsigned char* data)
      : work_(work), share_(share), data_(data) {}

  // Takes over the sums of a warpgroup, with the bias.
  TP_DEVICE void set(int group, float (&sum)[Tile::blocks][Tile::maps / 2]) const {
    if (work_.g.bias) add_bias(sum);
    if (work_.stores_boxes) {
      set_pairs<BoxPlace>(group, sum);
      publish_shared();
    } else if (work_.g.target_strides.channel == 1) {
      set_pairs<PixelPlace>(group, sum);
    } else {
      set_pairs<MapPlace>(group, sum);
    }
  }
  // Writes the tile, after a barrier; by `count` threads.
  TP_DEVICE void store(int thread, int count) const {
    if (work_.stores_boxes) return store_boxes(thread);
    const Gather<T>& g = work_.g;
    const int maps = int(min(g.maps - share_.map, int64_t(Tile::maps)));
    const bool aligned = reinterpret_cast<uintptr_t>(g.target) % 16 == 0;
    const bool whole_rows = share_.tile_cols == share_.cols.outputs && share_.rows.step == 1 && share_.cols.step == 1;
    const int plane = int(share_.rows.outputs * share_.cols.outputs), before = int(share_.row * share_.cols.outputs);
    const int pixels = share_.tile_rows * share_.tile_cols;
    const auto fits = [&](int width) {
      return aligned && whole_rows && plane % width == 0 && before % width == 0 && pixels % width == 0;
    };
    if (g.target_strides.channel == 1) {
      aligned&& g.maps % vector == 0 ? store_pixels<vector>(maps, thread, count) : store_pixels<1>(maps, thread, count);
    } else if (fits(vector)) {
      store_maps<vector>(maps, thread, count);
    } else {
      fits(4) ? store_maps<4>(maps, thread, count) : store_maps<1>(maps, thread, count);
    }
  }

 private:
  // Where two neighbouring maps of a pixel go, the first of which is even.
  struct BoxPlace {
    unsigned char* row;
    int turn, box_bytes;
    TP_DEVICE BoxPlace(unsigned char* data, int pixel, int lane, int box_bytes)
        : row(data + pixel * row_bytes + lane % 4 * 4), turn(pixel % 8 * 16), box_bytes(box_bytes) {}
    TP_DEVICE void set(int j, unsigned pair) const {
      *reinterpret_cast<unsigned*>(row + j / 8 * box_bytes + (j % 8 * 16 ^ turn)) = pair;
    }
  };
  struct PixelPlace {
    T* row;
    TP_DEVICE PixelPlace(unsigned char* data, int pixel, int lane, int)
        : row(reinterpret_cast<T*>(data) + pixel * pixel_pitch + lane % 4 * 2) {}
    TP_DEVICE void set(int j, unsigned pair) const { *reinterpret_cast<unsigned*>(row + j * 8) = pair; }
  };
  struct MapPlace {
    unsigned short* col;
    TP_DEVICE MapPlace(unsigned char* data, int pixel, int lane, int)
        : col(reinterpret_cast<unsigned short*>(data) + lane % 4 * 2 * map_pitch + pixel) {}
    TP_DEVICE void set(int j, unsigned pair) const {
      col[j * 8 * map_pitch] = static_cast<unsigned short>(pair);
      col[(j * 8 + 1) * map_pitch] = static_cast<unsigned short>(pair >> 16);
    }
  };
  template <class Place>
  TP_DEVICE void set_pairs(int group, const float (&sum)[Tile::blocks][Tile::maps / 2]) const {
    int thread = int(threadIdx.x) % warpgroup;
    asm volatile("" : "+r"(thread));  // else all addresses below would be kept in registers from tile to tile
#pragma unroll
    for (int i = 0; i < Tile::blocks * 2; ++i) {
      const int position = (group * Tile::blocks + i / 2) * 64 + thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8;
      const Place place(data_, pixel_at(position), thread % 32, box_bytes(work_.shape));
#pragma unroll
      for (int j = 0; j < Tile::maps / 8; ++j) {
        place.set(j, half_pair<T>(sum[i / 2][j * 4 + i % 2 * 2], sum[i / 2][j * 4 + i % 2 * 2 + 1]));
      }
    }
  }
  TP_DEVICE void add_bias(float (&sum)[Tile::blocks][Tile::maps / 2]) const {
#pragma unroll
    for (int i = 0; i < Tile::maps / 4; ++i) {
      const int map = share_.map + i / 2 * 8 + int(threadIdx.x) % 4 * 2 + i % 2;
      const float shift = map < work_.g.maps ? float(work_.g.bias[share_.group * work_.g.maps + map]) : 0.0f;
#pragma unroll
      for (int b = 0; b < Tile::blocks * 2; ++b) sum[b / 2][i / 2 * 4 + b % 2 * 2 + i % 2] += shift;
    }
  }
  TP_HD static int box_bytes(const PatchShape& shape) {
    return ceil_div((shape.rows * shape.cols + 1) * row_bytes, 1024) * 1024;
  }
  // The tile's pixel at a position; between rows, a place that nobody reads. A box is never cut off at the end of the
  // target.
  TP_DEVICE int pixel_at(int position) const {
    const int rows = work_.stores_boxes ? work_.shape.rows : share_.tile_rows;
    const int cols = work_.stores_boxes ? work_.shape.cols : share_.tile_cols;
    const int row = position / work_.shape.pitch, col = position % work_.shape.pitch;
    const int nowhere = work_.stores_boxes ? rows * cols : Tile::positions;
    return row < rows && col < cols ? row * cols + col : nowhere;
  }
  TP_DEVICE void store_boxes(int thread) const {
    if (thread > 0) return;
    for (int map = 0; map < Tile::maps && share_.map + map < work_.g.maps; map += 64) {
      store_window(work_.target, share_.image, share_.row, share_.col,
                   share_.group * int(work_.g.maps) + share_.map + map,
                   block::shared_address(data_) + unsigned(map / 64 * box_bytes(work_.shape)));
    }
    commit_stores();
  }
  TP_DEVICE T* target_of(int pixel) const {
    const int row = pixel / share_.tile_cols, col = pixel % share_.tile_cols;
    return work_.g.target + work_.g.target_strides.at(share_.image, share_.group * work_.g.maps + share_.map,
                                                      share_.rows.target(share_.row + row),
                                                      share_.cols.target(share_.col + col));
  }
  // A thread stays with its maps.
  template <int width>
  TP_DEVICE void store_pixels(int maps, int thread, int count) const {
    constexpr int across = Tile::maps / width;
    using V = block::Vector<T, width>;
    const T* const data = reinterpret_cast<const T*>(data_);
    const int map = thread % across * width, pixels = share_.tile_rows * share_.tile_cols;
    if (map >= maps) return;
#pragma unroll 4
    for (int pixel = thread / across; pixel < pixels; pixel += count / across) {
      *reinterpret_cast<V*>(target_of(pixel) + map) = *reinterpret_cast<const V*>(data + pixel * pixel_pitch + map);
    }
  }
  // A thread stays with its pixels.
  template <int width>
  TP_DEVICE void store_maps(int maps, int thread, int count) const {
    constexpr int across = Tile::positions / width;
    using V = block::Vector<T, width>;
    const T* const data = reinterpret_cast<const T*>(data_);
    const int pixel = thread % across * width, step = count / across;
    if (pixel >= share_.tile_rows * share_.tile_cols) return;
    int map = thread / across;
    T* to = target_of(pixel) + map * work_.g.target_strides.channel;
#pragma unroll 8
    for (; map < maps; map += step, to += step * work_.g.target_strides.channel) {
      *reinterpret_cast<V*>(to) = *reinterpret_cast<const V*>(data + map * map_pitch + pixel);
    }
  }

  const GatherWgmma<T>& work_;
  const WgmmaShare& share_;
  unsigned char* const data_;
};

// In a dgrad with a weight that is infinite or NaN, a block computes its tiles product by product.
template <class T>
TP_DEVICE void store_plain_share(const GatherWgmma<T>& work, const WgmmaShare& share, int tile_maps) {
  const Gather<T>& g = work.g;
#pragma unroll 1
  for (int i = int(threadIdx.x); i < share.tile_rows * share.tile_cols * tile_maps; i += int(blockDim.x)) {
    const int col = share.col + i % share.tile_cols, row = share.row + i / share.tile_cols % share.tile_rows;
    const int64_t map = share.map + i / share.tile_cols / share.tile_rows;
    if (map >= g.maps) return;
    const auto sum = g.plain_sum(share.rows, share.cols, share.image, share.group, map, row, col);
    g.target[g.target_strides.at(share.image, share.group * g.maps + map, share.rows.target(row),
                                 share.cols.target(col))] = T(sum);
  }
}

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::together)
    gather_wgmma(const __grid_constant__ GatherWgmma<T> work) {
#if TP_WGMMA
  extern __shared__ __align__(1024) unsigned char stages[];
  __shared__ block::Barrier barriers[ring_barriers][most_stages];
  if (threadIdx.x == 0) {
    for (int i = 0; i < most_stages; ++i) {
      for (int ring = 0; ring < ring_barriers; ++ring) {
        barriers[ring][i].init(ring == patch_full || ring == filter_full ? 1 : Tile::warps);
      }
    }
    publish_barriers();
  }
  __syncthreads();
  block::wait_for_launch_before();
  if (work.g.pass == Pass::dgrad && is_any_odd(work.odd)) {
    return for_tiles<Tile>(work, [&](const WgmmaShare& share) { store_plain_share(work, share, Tile::maps); });
  }
  const unsigned patches = block::shared_address(stages),
                 filters = patches + unsigned(work.patch_stages * work.shape.stage_bytes);
  WgmmaRings rings{patches, filters, barriers, block::Cursor(work.patch_stages), block::Cursor(work.filter_stages)};
  if (threadIdx.x >= Tile::warps * 32) {
    if constexpr (Tile::together == 1) leave_registers<Tile::few_registers>();
    if (threadIdx.x > Tile::warps * 32) return;
    return for_tiles<Tile>(work, [&](const WgmmaShare& share) { copy_factors<T, Tile>(work, share, rings); });
  }
  if constexpr (Tile::together == 1) take_registers<Tile::registers>();
  const int group = __shfl_sync(~0u, int(threadIdx.x) / warpgroup, 0);  // the same for a warp, as the compiler sees
  unsigned char* const data =
      stages + work.patch_stages * work.shape.stage_bytes + work.filter_stages * Tile::filter_bytes;
  for_tiles<Tile>(work, [&](const WgmmaShare& share) {
    float sum[Tile::blocks][Tile::maps / 2] = {};  // which a phase leaves so that no tap meets
    multiply_patches<T, Tile>(work, share, rings, group, sum);
    // The image of the tile before has been stored.
    const WgmmaImage<T, Tile> image(work, share, data);
    if (threadIdx.x == 0) wait_for_stores();
    __syncwarp();
    block::sync_warps(1, Tile::warps);
    image.set(group, sum);
    block::sync_warps(1, Tile::warps);
    image.store(int(threadIdx.x), Tile::warps * 32);
    __syncwarp();  // threads without pixels are ahead, and products take whole warps
  });
  if (threadIdx.x == 0) wait_for_stores();
#endif
}

// ---- the host's part

// Of a Hopper's multiprocessor, without what each block has besides: 1,024 bytes of the system's, and the barriers.
constexpr int shared_memory = 228 * 1024, block_memory = 2 * 1024;

// How far the taps of an output lie apart, from the first one to the last; in the phase where that is most.
inline int64_t reach(const Axis& a, Pass pass) {
  int64_t most = 0;
  for (int64_t phase = 0; phase < phases(a, pass); ++phase) {
    const GatherAxis axis = gather_axis(a, pass, phase);
    most = max(most, (axis.taps - 1) * max(axis.source_tap, -axis.source_tap));
  }
  return most;
}

// The smallest number of tiles of at most `positions`; none if their patches do not fit into `most_bytes`.
template <class T>
bool cut_into_patches(const Gather<T>& g, bool by_tap, int positions, int most_bytes, PatchShape& best) {
  const GatherAxis rows = gather_axis(g.rows, g.pass, 0), cols = gather_axis(g.cols, g.pass, 0);
  const int64_t down = phase_outputs(g.rows, g.pass), across = phase_outputs(g.cols, g.pass);
  const int64_t halo_rows = by_tap ? 0 : reach(g.rows, g.pass), halo_cols = by_tap ? 0 : reach(g.cols, g.pass);
  const int64_t box_rows = 256 / rows.source_step, box_cols = 256 / cols.source_step;
  int64_t fewest = 0;
  for (int64_t pieces = 1; pieces <= across; pieces *= 2) {
    const int64_t width = ceil_div(across, pieces), pitch = width + halo_cols;
    if (width > positions || pitch > box_cols) continue;
    int64_t height = min(min(down, (positions - width) / pitch + 1), box_rows - halo_rows);
    const auto bytes = [&] {
      const int64_t pixels = max((height + halo_rows) * pitch, positions + halo_rows * pitch + halo_cols);
      return ceil_div(pixels * row_bytes, int64_t(1024)) * 1024;
    };
    while (height > 0 && bytes() > most_bytes) --height;
    if (height <= 0) continue;
    height = ceil_div(down, ceil_div(down, height));
    const int64_t tiles_down = ceil_div(down, height), tiles_across = ceil_div(across, width);
    if (fewest > 0 && tiles_down * tiles_across >= fewest) continue;
    fewest = tiles_down * tiles_across;
    best = {by_tap,
            int(height),
            int(width),
            int(pitch),
            int(height + halo_rows),
            int((height + halo_rows) * pitch * row_bytes),
            int(bytes()),
            tiles_down,
            tiles_across};
  }
  return fewest > 0;
}

// The shape of the tiles, and how many stages there are; false if there is none.
template <class T, class Tile>
bool shape_tiles(GatherWgmma<T>& work) {
  const Gather<T>& g = work.g;
  const bool strided = g.pass == Pass::fprop && (g.rows.stride > 1 || g.cols.stride > 1);
  work.slabs = int(ceil_div(g.depth, int64_t(row_elements)));
  work.map_blocks = ceil_div(g.maps, int64_t(Tile::maps));
  for (int most_bytes = 88 * 1024; most_bytes > 0; most_bytes -= 8 * 1024) {
    const bool fits = (!strided && cut_into_patches(g, false, Tile::positions, most_bytes, work.shape)) ||
                      cut_into_patches(g, true, Tile::positions, most_bytes, work.shape);
    if (!fits) return false;
    // A patch becomes free when the products of the next one have begun; the last one of a tile earlier.
    const bool one_patch = work.slabs == 1 && (!work.shape.by_tap || g.rows.kernel * g.cols.kernel == 1);
    const int room = shared_memory / Tile::together - block_memory - WgmmaImage<T, Tile>::bytes(work);
    const auto filters_beside = [&](int patches) {
      return (room - patches * work.shape.stage_bytes) / Tile::filter_bytes;
    };
    work.patch_stages = work.shape.by_tap ? 4 : 2;
    while (work.patch_stages > (one_patch ? 1 : 2) && filters_beside(work.patch_stages) < 2) --work.patch_stages;
    work.filter_stages = min(filters_beside(work.patch_stages), most_stages);
    if (work.filter_stages >= 2) return true;
  }
  return false;
}

template <class T, class Tile>
void launch_gather_wgmma(GatherWgmma<T>& work, const GatherGemm<T>& packed, const ChannelsLast<T>& source,
                         Context& context) {
  require(shape_tiles<T, Tile>(work), "implicit_gemm: no tiles");
  const Gather<T>& g = work.g;
  const GatherAxis rows = gather_axis(g.rows, g.pass, 0), cols = gather_axis(g.cols, g.pass, 0);
  work.source = window_map(source.data, BatchMap(source, g.n, source.col, rows.sources, cols.sources, sizeof(T)),
                           work.shape.patch_rows, work.shape.pitch, int(rows.source_step), int(cols.source_step));
  work.filters = matrix_map(packed.filters, g.groups * g.rows.kernel * g.cols.kernel * g.maps, packed.width,
                            packed.width, Tile::maps);
  if (work.stores_boxes) {
    work.target =
        window_map(g.target, BatchMap(g.target_strides, g.n, g.groups * g.maps, rows.outputs, cols.outputs, sizeof(T)),
                   work.shape.rows, work.shape.cols);
  }
  work.by_map_block = Divisor(work.map_blocks);
  work.by_across = Divisor(work.shape.tiles_across);
  work.by_down = Divisor(work.shape.tiles_down);
  work.by_image = Divisor(g.n);
  work.by_col_phase = Divisor(work.col_phases);
  work.by_row_phase = Divisor(work.row_phases);
  const int bytes = work.patch_stages * work.shape.stage_bytes + work.filter_stages * Tile::filter_bytes +
                    WgmmaImage<T, Tile>::bytes(work);
  static const int64_t multiprocessors = block::device_attribute<cudaDevAttrMultiProcessorCount>();
  const int64_t blocks = min(work.tiles(), multiprocessors * Tile::together);
  cudaFuncSetAttribute(gather_wgmma<T, Tile>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  block::launch_early(gather_wgmma<T, Tile>, unsigned(blocks), Tile::threads, bytes, context, work);
  check_launch("implicit_gemm");
}

}  // namespace tp::conv
