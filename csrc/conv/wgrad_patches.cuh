// wgrad by filters of 3 x 3 and 5 x 5 with stride 1, for wgrad_wgmma.cuh: slabs of the inner dimension whose pixels of
// x are copied once for all taps.
//
// A slab has groups of eight pixels in a row of dy, one below another. Of x it has the patch that all taps of these
// pixels read. What a tap reads of a group of pixels is eight pixels of a row of the patch, `pitch` pixels before what
// it reads of the group below, so the product of every tap can read the same patch, from some pixels further on.
// Neighbouring taps of a row are `dilation` pixels apart; these are the columns of one product, although they overlap.
//
// A slab may extend beyond the last row or column of dy, where it has zeros. Whatever is finite in x there adds
// nothing; sums that are not finite are computed again (existing_sum).
#pragma once
#include "conv/wgrad_units.cuh"

namespace tp::conv {

// The tile of a block: 64 maps by all taps of some channels, of filters of kernel x kernel. Each warpgroup has one row
// of taps.
template <int channels_, int kernel = 3>
struct PatchGradTile {
  static constexpr int channels = channels_;
  static constexpr int groups = kernel, unit_groups = groups, units = kernel * kernel, units_each = kernel;
  static constexpr int blocks = 1, blocks_each = 1;
  static constexpr int warps = groups * 4, threads = (groups + 1) * block::warpgroup, most_stages = 16;
  static constexpr int copiers = 2;  // one warp for dy, one for x
  static constexpr int registers = groups == 3 ? 152 : 88, few_registers = 40;
  static constexpr int group_pixels = 8, group_bytes = group_pixels * block::row_bytes, most_groups = 16;
  static constexpr int pixel_bytes = channels * 2;  // of x
  // The columns of a box of dw, which one instruction stores: at most 256. With these numbers of columns, the eight
  // rows and four columns that a warp writes at a time lie in different banks, or at most two in the same one.
  static constexpr int box_columns = units * (kernel == 3 ? 16 : 8);
  static constexpr bool has_patches = true, can_go_on = true;

  // Larger dilations would have patches of which three stages do not fit in shared memory.
  static bool supports(const Axis& rows, const Axis& cols) {
    const auto fits = [](const Axis& a) {
      return a.kernel == kernel && a.stride == 1 && (kernel - 1) * a.dilation <= 8;
    };
    return fits(rows) && fits(cols) && rows.dilation == cols.dilation;
  }

  // Finds the slabs that take the least time, of those that are small enough for three stages; products need two.
  template <class T>
  static void cut(WgradWgmma<T>& work, int memory) {
    const Elements<T>& e = work.e;
    const int halo = int((kernel - 1) * e.cols.dilation), pitch = group_pixels + halo;
    double least = 0;
    const auto consider = [&](int images, int rows) {
      const bool together = images > 1;
      const int line = pitch * pixel_bytes, dy_image = rows * group_bytes, x_image = (rows + halo) * line,
                step = together ? 1 : 2;  // rows
      const PatchSlab slab{images,
                           rows,
                           pitch,
                           images * dy_image,
                           images * x_image,
                           together ? images / 2 : 1,
                           rows / step,
                           {together ? dy_image : group_bytes, step * group_bytes / 16, dy_image / 16},
                           {together ? x_image : line, step * line / 16, (2 * x_image - rows * line) / 16},
                           ceil_div(e.cols.out, int64_t(group_pixels)),
                           ceil_div(e.rows.out, int64_t(rows)),
                           e.cols.out % group_pixels + e.rows.out % rows > 0};
      const int64_t slabs = ceil_div(e.n, int64_t(images)) * slab.down * slab.across;
      const double time = slabs * cycles(slab, 1);
      if (bytes(slab) > memory / 3 || (least > 0 && time >= least)) return;
      least = time, work.slab = slab, work.slabs = int(slabs);
    };
    for (int rows = 2; rows <= min(e.rows.out + 1, int64_t(most_groups)); rows += 2) consider(1, rows);
    for (int images = 2; images * e.rows.out <= most_groups; images += 2) consider(images, int(e.rows.out));
    work.by_across = Divisor(work.slab.across);
    work.by_down = Divisor(work.slab.down);
    work.stage_bytes = work.slab.dy_bytes + ceil_div(work.slab.x_bytes, 1024) * 1024;
    work.stages = min(memory / work.stage_bytes, most_stages);
  }
  // For a pair of groups, each warpgroup multiplies 16 pixels of 64 maps and of its units. A slab takes 20 cycles to
  // begin.
  static double cycles(const PatchSlab& slab, double busy) {
    return slab_cycles(slab.turns * slab.pairs * groups, units_each * channels, 37, busy, bytes(slab)) + 20;
  }
  static int bytes(const PatchSlab& slab) { return slab.dy_bytes + slab.x_bytes; }
  template <class T>
  static double cycles(const WgradWgmma<T>& work, double busy) {
    return cycles(work.slab, busy);
  }
  template <class T>
  static int copied(const WgradWgmma<T>& work) {  // bytes of a slab
    return bytes(work.slab);
  }

  template <class T>
  static void map_operands(WgradWgmma<T>& work, const ChannelsLast<T>& x, const ChannelsLast<T>& dy) {
    const Elements<T>& e = work.e;
    const PatchSlab& slab = work.slab;
    work.dy = window_map(dy.data, BatchMap(dy, e.n, dy.col, e.rows.out, e.cols.out, sizeof(T)), slab.rows, group_pixels,
                         slab.images);
    work.x = window_map(x.data, BatchMap(x, e.n, x.col, e.rows.in, e.cols.in, sizeof(T)),
                        slab.rows + slab.pitch - group_pixels, slab.pitch, slab.images, channels);
    if (stores_aligned(e)) {
      work.dw = block::planes_map(e.weight, e.groups, e.maps, e.channels * units, blocks * 64, box_columns);
    }
  }
};

// Starts the copies of all slabs of a share, of dy or of x. One thread calls it.
template <class T, class Tile>
TP_DEVICE void copy_patches(const WgradWgmma<T>& work, const UnitShare& share, unsigned stages, block::Barrier* full,
                            block::Barrier* empty, block::Cursor& cursor, int copier) {
  const PatchSlab& shape = work.slab;
  const bool copies_x = copier > 0;
  const int channel = int(copies_x ? share.group * work.x_group + share.unit / Tile::units * Tile::channels
                                   : share.group * work.dy_group + share.map);
  const int top = copies_x ? int(work.e.rows.pad) : 0, left = copies_x ? int(work.e.cols.pad) : 0;
  const CUtensorMap& map = copies_x ? work.x : work.dy;
  const int bytes = copies_x ? shape.x_bytes : shape.dy_bytes;
  for (int slab = share.first_slab; slab < share.last_slab; ++slab, cursor.next()) {
    int col = slab, row = work.by_across.divide(col);
    const int image = work.by_down.divide(row);
    block::Barrier& barrier = full[cursor.stage];
    empty[cursor.stage].wait(cursor.parity ^ 1);
    block::arrive_expecting(barrier, bytes);
    copy_window(map, image * shape.images, row * shape.rows - top, col * Tile::group_pixels - left, channel,
                stages + unsigned(cursor.stage * work.stage_bytes + (copies_x ? shape.dy_bytes : 0)), barrier);
  }
}

// Computes the sums of a warpgroup, for its row of taps.
template <class T, class Tile>
TP_DEVICE void multiply_patches(const WgradWgmma<T>& work, const UnitShare& share, unsigned stages,
                                block::Barrier* full, block::Barrier* empty, block::Cursor& cursor, int tap_row,
                                UnitTileSums<Tile>& sum) {
  const PatchSlab& shape = work.slab;
  const bool frees = threadIdx.x % 32 == 0;  // one thread of each warp
  const int dilation = int(work.e.cols.dilation), tap_bytes = dilation * Tile::pixel_bytes;
  const unsigned first = unsigned(shape.dy_bytes + tap_row * tap_bytes * shape.pitch);
  int used = -1;  // the stage of the slab before, which its last product may still read
#pragma unroll
  for (float& value : sum[0]) value = 0;
#pragma unroll 1
  for (int slab = share.first_slab; slab < share.last_slab; ++slab, cursor.next()) {
    full[cursor.stage].wait(cursor.parity);
    const unsigned stage = stages + unsigned(cursor.stage * work.stage_bytes);
    uint64_t left = block::factor_at(stage, 16, shape.of_dy.apart),
             right = block::factor_at<Tile::channels>(stage + first, tap_bytes, shape.of_x.apart);
    // Starts the products of so many pairs. Then those before them are complete, and the slab before is free.
    const auto multiply = [&](auto pairs) {
      block::begin_products();
#pragma unroll
      for (int k = 0; k < pairs.value; ++k, left += shape.of_dy.step, right += shape.of_x.step) {
        block::multiply_tiles<T, false, false>(sum[0], left, right, true);
      }
      block::commit_products();
      block::wait_for_products<1>();
      if (frees && used >= 0) empty[used].arrive();
      used = -1;
    };
#pragma unroll 1
    for (int turn = shape.turns; turn > 0; --turn) {
      // The products of a group run back to back; groups of one would wait for each other's beginning.
#pragma unroll 1
      for (int pairs = shape.pairs; pairs > 0; pairs -= 4) {
        pairs >= 4   ? multiply(std::integral_constant<int, 4>{})
        : pairs == 3 ? multiply(std::integral_constant<int, 3>{})
        : pairs == 2 ? multiply(std::integral_constant<int, 2>{})
                     : multiply(std::integral_constant<int, 1>{});
      }
      left += shape.of_dy.turn;
      right += shape.of_x.turn;
    }
    used = cursor.stage;
  }
  block::wait_for_products<0>();
  if (frees && used >= 0) empty[used].arrive();
}

}  // namespace tp::conv
