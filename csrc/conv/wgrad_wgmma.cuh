// wgrad as one matrix product on the tensor cores of Hopper:
//
//   dw[maps, (tap, channel)] = dy^T[maps, pixels] x x[pixels, (tap, channel)]
//
// The inner dimension is all pixels of the batch, in slabs. Both factors store the channels of a pixel next to each
// other, and are read across the rows. The columns are divided into units, each of which is 64 channels under one tap.
// A tensor map finds what a tap reads for a slab of pixels, with zeros for padding, so a slab may extend over the ends
// of rows and images.
//
// A block computes a tile of dw over one slice of the slabs; a second kernel adds up the slices in a fixed order. Four
// warps start the copies, in a ring of stages, because starting one takes long. The warpgroups multiply, each a part of
// the tile.
#pragma once
#include "block/slices.cuh"
#include "conv/divisor.h"
#include "conv/tensor_map.cuh"

namespace tp::conv {

// The tile of a block: `blocks` blocks of 64 maps, by `units` units of 64 columns. It is divided among `map_groups` by
// `unit_groups` warpgroups.
template <int blocks_, int units_, int map_groups, int unit_groups_>
struct WgradTile {
  static constexpr int blocks = blocks_, units = units_, unit_groups = unit_groups_, groups = map_groups * unit_groups;
  static constexpr int blocks_each = blocks / map_groups, units_each = units / unit_groups;
  static constexpr int slab = 32, block_bytes = slab * block::row_bytes, stage_bytes = (blocks + units) * block_bytes;
  static constexpr int warps = groups * 4, threads = (groups + 1) * block::warpgroup, stages = 220 * 1024 / stage_bytes;
  // The number of warps that copy, and the most copies of each per slab.
  static constexpr int copiers = 4, most_copies = ceil_div(blocks + units, copiers);
  // Registers of a multiplying and of a copying thread; a multiprocessor has 65,536.
  static constexpr int registers = groups == 2 ? 232 : 152, few_registers = 40;

  // How many cycles a multiprocessor takes per slab for the tiles of dw: to multiply, or to copy what exists of them,
  // at 43 bytes per cycle (on an H200).
  static int64_t cycles(int64_t map_blocks, int64_t all_units) {
    const int64_t down = ceil_div(map_blocks, int64_t(blocks)), across = ceil_div(all_units, int64_t(units));
    return max(down * across * blocks * units * 64, (map_blocks * across + all_units * down) * block_bytes / 43);
  }
};

template <class T>
struct WgradWgmma {
  Elements<T> e;
  CUtensorMap dy, x;
  int64_t x_group, dy_group;  // the distance in channels between groups
  int64_t taps, units;        // of one group
  Divisor out_cols, out_rows;
  int64_t map_blocks, unit_blocks, slabs, slices;
  float* sums;  // [slices][groups][maps][units][64]

  TP_HD int64_t sums_per_slice() const { return e.groups * e.maps * units * block::row_elements; }
  int64_t blocks() const { return map_blocks * unit_blocks * e.groups * slices; }
};

// The share of a block: one tile of dw over one slice.
struct UnitShare {
  int64_t group, map, unit, slice;
  int units, first_slab, last_slab;
};

template <class T, class Tile>
TP_DEVICE UnitShare unit_share(const WgradWgmma<T>& work) {
  int64_t unit = blockIdx.x, map = divide(unit, work.unit_blocks), group = divide(map, work.map_blocks),
          slice = divide(group, work.e.groups);
  unit *= Tile::units;
  return {group,
          map * Tile::blocks * 64,
          unit,
          slice,
          int(min(work.units - unit, int64_t(Tile::units))),
          int(slice * work.slabs / work.slices),
          int((slice + 1) * work.slabs / work.slices)};
}

// What one instruction copies per slab: a block of 64 maps of dy, or a unit of x.
struct SlabCopy {
  int channel, down, across;
  bool exists;
};

template <class T, class Tile>
TP_DEVICE SlabCopy slab_copy(const WgradWgmma<T>& work, const UnitShare& share, int i) {
  if (i < Tile::blocks) return {int(share.group * work.dy_group + share.map) + i * block::row_elements, 0, 0, true};
  int64_t tap = share.unit + i - Tile::blocks, block = divide(tap, work.taps), q = tap,
          p = divide(q, work.e.cols.kernel);
  return {int(share.group * work.x_group + block * block::row_elements), int(p * work.e.rows.dilation),
          int(q * work.e.cols.dilation), i - Tile::blocks < share.units};
}

// Starts every fourth copy of all slabs of a share. One thread calls it.
template <class T, class Tile>
TP_DEVICE void copy_slabs(const WgradWgmma<T>& work, const UnitShare& share, unsigned stages, block::Barrier* full,
                          block::Barrier* empty, int copier) {
  const int down = int(work.e.rows.stride), across = int(work.e.cols.stride), top = int(work.e.rows.pad),
            left = int(work.e.cols.pad);
  SlabCopy copies[Tile::most_copies];
  int bytes = 0;
#pragma unroll
  for (int k = 0; k < Tile::most_copies; ++k) {
    const int i = copier + k * Tile::copiers;
    copies[k] = slab_copy<T, Tile>(work, share, i);
    copies[k].exists = copies[k].exists && i < Tile::blocks + Tile::units;
    bytes += copies[k].exists ? Tile::block_bytes : 0;
  }
  block::Cursor cursor(Tile::stages);
  for (int slab = share.first_slab; slab < share.last_slab; ++slab, cursor.next()) {
    int col = slab * Tile::slab, row = work.out_cols.divide(col);
    const int image = work.out_rows.divide(row);
    block::Barrier& barrier = full[cursor.stage];
    empty[cursor.stage].wait(cursor.parity ^ 1);
    block::expect_bytes(barrier, bytes);
    const unsigned to = stages + unsigned(cursor.stage * Tile::stage_bytes + copier * Tile::block_bytes);
#pragma unroll
    for (int k = 0; k < Tile::most_copies; ++k) {
      if (!copies[k].exists) continue;
      const unsigned box = to + unsigned(k * Tile::copiers * Tile::block_bytes);
      if (copier + k * Tile::copiers < Tile::blocks) {
        block::copy_matrix(work.dy, slab * Tile::slab, copies[k].channel, box, barrier);
      } else {
        copy_tap(work.x, image, row * down - top, col * across - left, copies[k].channel, copies[k].down,
                 copies[k].across, box, barrier);
      }
    }
    barrier.arrive();
  }
}

// Computes the sums of a warpgroup, whose part of the tile begins at `first_block` and `first_unit`.
template <class T, class Tile>
TP_DEVICE void multiply_slabs(const UnitShare& share, unsigned stages, block::Barrier* full, block::Barrier* empty,
                              int first_block, int first_unit, float (&sum)[Tile::blocks_each][Tile::units_each * 32]) {
  const bool frees = threadIdx.x % 32 == 0;  // one thread of each warp
  block::Cursor cursor(Tile::stages);
  block::Barrier* used = nullptr;  // the stage that running products read
  for (int slab = share.first_slab; slab < share.last_slab; ++slab, cursor.next()) {
    full[cursor.stage].wait(cursor.parity);
    const unsigned stage = stages + unsigned(cursor.stage * Tile::stage_bytes),
                   left = stage + unsigned(first_block * Tile::block_bytes),
                   right = stage + unsigned((Tile::blocks + first_unit) * Tile::block_bytes);
    block::begin_products();
#pragma unroll
    for (int k = 0; k < Tile::block_bytes; k += 16 * block::row_bytes) {
#pragma unroll
      for (int b = 0; b < Tile::blocks_each; ++b) {
        block::multiply_tiles<T, false, false>(
            sum[b], block::factor_at(left + unsigned(b * Tile::block_bytes + k), Tile::block_bytes),
            block::factor_at(right + unsigned(k), Tile::block_bytes), slab > share.first_slab || k > 0);
      }
    }
    block::commit_products();
    block::wait_for_products<1>();
    if (frees && used) used->arrive();
    used = &empty[cursor.stage];
  }
  block::wait_for_products<0>();
}

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, 1) wgrad_wgmma(const __grid_constant__ WgradWgmma<T> work) {
#if TP_WGMMA
  extern __shared__ __align__(1024) unsigned char pool[];
  __shared__ UnitShare share;
  __shared__ block::Barrier full[Tile::stages], empty[Tile::stages];
  // Find the share of the block, and initialize the barriers.
  if (threadIdx.x == 0) {
    share = unit_share<T, Tile>(work);
    for (int i = 0; i < Tile::stages; ++i) {
      full[i].init(Tile::copiers);
      empty[i].init(Tile::warps);
    }
    block::publish_barriers();
  }
  __syncthreads();
  block::allow_next_launch();
  block::wait_for_launch_before();
  const unsigned stages = (block::shared_address(pool) + 1023) / 1024 * 1024;
  // The copying warps: one thread of each starts the copies.
  if (threadIdx.x >= Tile::warps * 32) {
    block::leave_registers<Tile::few_registers>();
    const int copier = int(threadIdx.x) / 32 - Tile::warps;
    if (threadIdx.x % 32 == 0) copy_slabs<T, Tile>(work, share, stages, full, empty, copier);
    return;
  }
  // The multiplying warpgroups: compute the sums, then store them to the slice.
  block::take_registers<Tile::registers>();
  // The shuffle shows the compiler that all lanes of a warp have the same `group`.
  const int group = __shfl_sync(~0u, int(threadIdx.x) / block::warpgroup, 0);
  const int first_block = group / Tile::unit_groups * Tile::blocks_each,
            first = group % Tile::unit_groups * Tile::units_each;
  float sum[Tile::blocks_each][Tile::units_each * 32];
  multiply_slabs<T, Tile>(share, stages, full, empty, first_block, first, sum);
  const int thread = int(threadIdx.x) % block::warpgroup, lane = thread % 32;
  const int columns = (share.units - first) * block::row_elements;
#pragma unroll
  for (int i = 0; i < Tile::blocks_each * 2; ++i) {
    const int64_t map = share.map + (first_block + i / 2) * 64 + i % 2 * 8 + thread / 32 * 16 + lane / 4;
    if (map >= work.e.maps) continue;
    float* const row = work.sums + share.slice * work.sums_per_slice() +
                       ((share.group * work.e.maps + map) * work.units + share.unit + first) * block::row_elements;
#pragma unroll
    for (int j = 0; j < Tile::units_each * 8; ++j) {
      const int column = j * 8 + lane % 4 * 2;
      if (column >= columns) continue;
      *reinterpret_cast<float2*>(row + column) = {sum[i / 2][j * 4 + i % 2 * 2], sum[i / 2][j * 4 + i % 2 * 2 + 1]};
    }
  }
#endif
}

// ---- adding up the slices

// A block adds up the sums of some channels of one map under all taps, which are contiguous in dw. Each of `lanes`
// threads adds up every lanes-th slice, for four neighbouring channels under one tap.
constexpr int sum_channels = 32, add_columns = 72, most_taps = 256;

template <class T, int lanes>
__global__ void __launch_bounds__(lanes* add_columns) add_units(const __grid_constant__ WgradWgmma<T> work) {
  __shared__ float4 pool[lanes][add_columns];
  extern __shared__ float totals[];
  const int taps = int(work.taps), channels = int(work.e.channels), slices = int(work.slices);
  const int column = int(threadIdx.x) % add_columns, lane = int(threadIdx.x) / add_columns;
  const int blocks = ceil_div(channels, sum_channels), map = int(blockIdx.x) / blocks,
            channel = int(blockIdx.x) % blocks * sum_channels;
  const int64_t next = work.sums_per_slice();
  const float* const sums = work.sums + lane * next + channel % block::row_elements +
                            (int64_t(map) * work.units + channel / block::row_elements * taps) * block::row_elements;
  block::wait_for_launch_before();
  for (int first = 0; first < taps * sum_channels / 4; first += add_columns) {
    const int tap = (first + column) / (sum_channels / 4), offset = (first + column) % (sum_channels / 4) * 4;
    // Each lane adds up its slices.
    float4 total{};
    if (tap < taps) {
      const float* from = sums + tap * block::row_elements + offset;
#pragma unroll 8
      for (int slice = lane; slice < slices; slice += lanes, from += lanes * next) {
        const float4 more = *reinterpret_cast<const float4*>(from);
        total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
      }
    }
    pool[lane][column] = total;
    __syncthreads();
    // Add up the lanes, and put the sums in the order of dw.
    for (int i = int(threadIdx.x); i < add_columns * 4; i += lanes * add_columns) {
      const int index = first * 4 + i;
      float all = 0;
#pragma unroll
      for (int k = 0; k < lanes; ++k) all += reinterpret_cast<const float*>(pool[k])[i];
      if (index < taps * sum_channels) totals[index % sum_channels * taps + index / sum_channels] = all;
    }
    __syncthreads();
  }
  const int count = min(channels - channel, sum_channels) * taps;
  T* const out = work.e.weight + (int64_t(map) * channels + channel) * taps;
  for (int i = int(threadIdx.x); i < count; i += lanes * add_columns) out[i] = T(totals[i]);
}

// The index in dw of sum i of a slice, if the filters have one tap; -1 for the channels that only pad the last unit.
struct IndexInRow {
  int64_t width, channels;
  TP_HD int64_t operator()(int64_t i) const {
    const int64_t row = divide(i, width);
    return i < channels ? row * channels + i : -1;
  }
};

template <class T, int lanes>
void launch_add_units(const WgradWgmma<T>& work, Context& context) {
  block::launch_early(add_units<T, lanes>, unsigned(work.e.m * ceil_div(work.e.channels, int64_t(sum_channels))),
                      lanes * add_columns, int(work.taps) * sum_channels * int(sizeof(float)), context, work);
  check_launch("implicit_gemm");
}

// ---- the host's part

template <class T, class Tile>
void launch_wgrad_wgmma(const Elements<T>& e, const ChannelsLast<T>& x, const ChannelsLast<T>& dy, Context& context) {
  const int64_t pixels = e.n * e.rows.out * e.cols.out;
  WgradWgmma<T> work{
      e,
      block::matrix_map(dy.data, pixels, dy.col, dy.col, Tile::slab),
      tap_map(x.data, BatchMap(x, e.n, x.col, e.rows.in, e.cols.in, sizeof(T)), e.rows, e.cols, Tile::slab),
      x.group,
      dy.group,
      e.taps(),
      e.taps() * ceil_div(e.channels, int64_t(block::row_elements)),
      Divisor(e.cols.out),
      Divisor(e.rows.out)};
  work.map_blocks = ceil_div(e.maps, int64_t(Tile::blocks * 64));
  work.unit_blocks = ceil_div(work.units, int64_t(Tile::units));
  work.slabs = ceil_div(pixels, int64_t(Tile::slab));
  // As many slices as keep all multiprocessors busy, but at least 8 slabs per slice, so that multiplying takes longer
  // than adding up the slices.
  static const int64_t multiprocessors = block::device_attribute<cudaDevAttrMultiProcessorCount>();
  work.slices = max(int64_t(1), min(multiprocessors / (work.map_blocks * work.unit_blocks * e.groups), work.slabs / 8));
  work.sums = context.workspace<float>(work.slices * work.sums_per_slice());
  constexpr int bytes = 1024 + Tile::stages * Tile::stage_bytes;
  block::allow_shared_memory(wgrad_wgmma<T, Tile>, bytes);
  block::launch_early(wgrad_wgmma<T, Tile>, unsigned(work.blocks()), Tile::threads, bytes, context, work);
  check_launch("implicit_gemm");
  if (work.taps == 1) {
    block::sum_slices(work.sums, work.slices, work.sums_per_slice(), e.weight, context,
                      IndexInRow{work.units * block::row_elements, e.channels});
  } else {
    work.slices > 16 ? launch_add_units<T, 8>(work, context) : launch_add_units<T, 1>(work, context);
  }
}

}  // namespace tp::conv
