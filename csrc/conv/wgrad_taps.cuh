// wgrad by filters of any size and stride, for wgrad_wgmma.cuh: slabs of consecutive pixels of the batch, of which x is
// copied once per tap. A tensor map finds what a tap reads for a slab of pixels, with zeros for padding, so a slab may
// extend over the ends of rows and images.
#pragma once
#include "conv/wgrad_units.cuh"

namespace tp::conv {

// The tile of a block: `blocks` blocks of 64 maps, by `units` units of `channels` columns. It is divided among
// `map_groups` by `unit_groups` warpgroups.
template <int blocks_, int units_, int map_groups, int unit_groups_, int channels_ = 64, int slab_ = 32>
struct TapGradTile {
  static constexpr int blocks = blocks_, units = units_, unit_groups = unit_groups_, groups = map_groups * unit_groups;
  static constexpr int blocks_each = blocks / map_groups, units_each = units / unit_groups, channels = channels_;
  static constexpr int slab = slab_, dy_bytes = slab * block::row_bytes, x_bytes = slab * channels * 2;  // copies
  static constexpr int stage_bytes = (blocks * dy_bytes + units * x_bytes + 1023) / 1024 * 1024;
  static constexpr int warps = groups * 4, threads = (groups + 1) * block::warpgroup;
  static constexpr int most_stages = 16;
  // Whether there are registers beside the sums to go on to another tile.
  static constexpr bool has_patches = false, can_go_on = blocks_each * units_each * channels <= 128;
  // The number of warps that copy, and the most copies of each per slab.
  static constexpr int copiers = 4, most_copies = ceil_div(blocks + units, copiers);
  // Registers of a multiplying and of a copying thread; a multiprocessor has 65,536.
  static constexpr int registers = groups == 2 ? 232 : 152, few_registers = 40;

  // Divides the inner dimension into slabs.
  template <class T>
  static void cut(WgradWgmma<T>& work, int memory) {
    const Elements<T>& e = work.e;
    work.slabs = int(ceil_div(e.n * e.rows.out * e.cols.out, int64_t(slab)));
    work.by_across = Divisor(e.cols.out);
    work.by_down = Divisor(e.rows.out);
    work.stages = min(memory / stage_bytes, most_stages);
    work.stage_bytes = stage_bytes;
  }
  // For 16 pixels at a time, each warpgroup multiplies its maps, 64 at a time. What does not exist is not copied. A
  // copy takes at least 87 cycles, and a slab 20 to begin.
  template <class T>
  static double cycles(const WgradWgmma<T>& work, double busy) {
    const int products = slab / 16 * blocks * unit_groups, copies = of_dy(work) + of_x(work);
    return max(slab_cycles(products, units_each * channels, 43, busy, copied(work)), copies * 87.0) + 20;
  }
  template <class T>
  static int copied(const WgradWgmma<T>& work) {  // bytes of a slab
    return of_dy(work) * dy_bytes + of_x(work) * x_bytes;
  }
  template <class T>
  static int of_dy(const WgradWgmma<T>& work) {  // copies
    return int(min(ceil_div(work.e.maps, int64_t(64)), int64_t(blocks)));
  }
  template <class T>
  static int of_x(const WgradWgmma<T>& work) {
    return min(work.units, units);
  }
  template <class T>
  static void map_operands(WgradWgmma<T>& work, const ChannelsLast<T>& x, const ChannelsLast<T>& dy) {
    const Elements<T>& e = work.e;
    work.dy = block::matrix_map(dy.data, e.n * e.rows.out * e.cols.out, dy.col, dy.col, slab);
    work.x = tap_map(x.data, BatchMap(x, e.n, x.col, e.rows.in, e.cols.in, sizeof(T)), e.rows, e.cols, slab, channels);
  }
};

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
  return {int(share.group * work.x_group + block * Tile::channels), int(p * work.e.rows.dilation),
          int(q * work.e.cols.dilation), i - Tile::blocks < share.units};
}

// Starts every fourth copy of all slabs of a share. One thread calls it.
template <class T, class Tile>
TP_DEVICE void copy_slabs(const WgradWgmma<T>& work, const UnitShare& share, unsigned stages, block::Barrier* full,
                          block::Barrier* empty, block::Cursor& cursor, int copier) {
  const int down = int(work.e.rows.stride), across = int(work.e.cols.stride), top = int(work.e.rows.pad),
            left = int(work.e.cols.pad);
  SlabCopy copies[Tile::most_copies];
  int bytes = 0;
#pragma unroll
  for (int k = 0; k < Tile::most_copies; ++k) {
    const int i = copier + k * Tile::copiers;
    copies[k] = slab_copy<T, Tile>(work, share, i);
    copies[k].exists = copies[k].exists && i < Tile::blocks + Tile::units;
    if (copies[k].exists) bytes += i < Tile::blocks ? Tile::dy_bytes : Tile::x_bytes;
  }
  for (int slab = share.first_slab; slab < share.last_slab; ++slab, cursor.next()) {
    int col = slab * Tile::slab, row = work.by_across.divide(col);
    const int image = work.by_down.divide(row);
    block::Barrier& barrier = full[cursor.stage];
    empty[cursor.stage].wait(cursor.parity ^ 1);
    block::arrive_expecting(barrier, bytes);
    const unsigned to = stages + unsigned(cursor.stage * Tile::stage_bytes);
#pragma unroll
    for (int k = 0; k < Tile::most_copies; ++k) {
      if (!copies[k].exists) continue;
      const int i = copier + k * Tile::copiers;
      if (i < Tile::blocks) {
        block::copy_matrix(work.dy, slab * Tile::slab, copies[k].channel, to + unsigned(i * Tile::dy_bytes), barrier);
      } else {
        const unsigned box = to + unsigned(Tile::blocks * Tile::dy_bytes + (i - Tile::blocks) * Tile::x_bytes);
        copy_tap(work.x, image, row * down - top, col * across - left, copies[k].channel, copies[k].down,
                 copies[k].across, box, barrier);
      }
    }
  }
}

// Computes the sums of a warpgroup, whose part of the tile begins at `first_block` and `first_unit`.
template <class T, class Tile>
TP_DEVICE void multiply_slabs(const UnitShare& share, unsigned stages, block::Barrier* full, block::Barrier* empty,
                              block::Cursor& cursor, int first_block, int first_unit, UnitTileSums<Tile>& sum) {
  const bool frees = threadIdx.x % 32 == 0;  // one thread of each warp
  block::Barrier* used = nullptr;            // the stage that running products read
  for (int slab = share.first_slab; slab < share.last_slab; ++slab, cursor.next()) {
    full[cursor.stage].wait(cursor.parity);
    const unsigned stage = stages + unsigned(cursor.stage * Tile::stage_bytes),
                   left = stage + unsigned(first_block * Tile::dy_bytes),
                   right = stage + unsigned(Tile::blocks * Tile::dy_bytes + first_unit * Tile::x_bytes);
    block::begin_products();
#pragma unroll
    for (int k = 0; k < Tile::slab; k += 16) {
      const uint64_t columns = block::factor_at<Tile::channels>(right + unsigned(k * Tile::channels * 2), Tile::x_bytes,
                                                                Tile::channels * 16);
#pragma unroll
      for (int b = 0; b < Tile::blocks_each; ++b) {
        const uint64_t maps =
            block::factor_at(left + unsigned(b * Tile::dy_bytes + k * block::row_bytes), Tile::dy_bytes);
        block::multiply_tiles<T, false, false>(sum[b], maps, columns, slab > share.first_slab || k > 0);
      }
    }
    block::commit_products();
    block::wait_for_products<1>();
    if (frees && used) used->arrive();
    used = &empty[cursor.stage];
  }
  block::wait_for_products<0>();
  if (frees && used) used->arrive();
}

}  // namespace tp::conv
