// The products that implicit_gemm computes by wgmma, the matrix instructions of warpgroups, and by copies through
// tensor maps. This file is compiled for sm_90a, the target that has them; wgmma.cuh says what happens on other
// devices.
#include "conv/hopper_sm90a.h"
#ifdef __CUDACC__
#include "conv/gather_wgmma.cuh"
#include "conv/pointwise_wgmma.cuh"
#include "conv/pointwise_wgrad.cuh"
#include "conv/wgrad_wgmma.cuh"

namespace tp::conv {
namespace {

// Tiles of fprop and dgrad: positions x maps. Tiles of wgrad: 64 maps and so many channels under all taps, or maps x
// columns, of which there is one per channel and tap.
using Tile256x128 = WgmmaTile<256, 128>;
using Tile208x128 = WgmmaTile<208, 128>;
using Tile128x128 = WgmmaTile<128, 128>;
using Tile208x64 = WgmmaTile<208, 64>;
using Tile128x64 = WgmmaTile<128, 64>;
using Tile64x64 = WgmmaTile<64, 64>;
using Patch64 = PatchGradTile<64>;
using Patch32 = PatchGradTile<32>;
using Patch16 = PatchGradTile<16>;
using Patch16x5 = PatchGradTile<16, 5>;
using Wgrad64x576 = TapGradTile<1, 9, 1, 3>;
using Wgrad128x384 = TapGradTile<2, 6, 1, 2>;
using Wgrad128x256 = TapGradTile<2, 4, 1, 2>;
using Wgrad256x64 = TapGradTile<4, 1, 2, 1>;
using Wgrad128x128 = TapGradTile<2, 2, 2, 1, 64, 64>;
using Wgrad128x64 = TapGradTile<2, 1, 2, 1, 64, 64>;
using Wgrad64x288 = TapGradTile<1, 9, 1, 3, 32, 64>;
using Wgrad64x144 = TapGradTile<1, 9, 1, 3, 16, 64>;

// The same for filters of one pixel: maps, and maps x channels.
using Maps64 = PointwiseTile<false, 1>;
using Maps128 = PointwiseTile<true, 1>;
using Maps256 = PointwiseTile<true, 2>;
using Grad64x128 = PointwiseGradTile<false, 1, 64>;
using Grad64x256 = PointwiseGradTile<false, 1, 128>;
using Grad256x64 = PointwiseGradTile<true, 2, 64>;
using Grad256x128 = PointwiseGradTile<true, 2, 128>;

// The most blocks below each other in a grid.
constexpr int64_t most_grid = 65535;

// With fewer channels or maps, most of a tile would be zeros.
constexpr int64_t fewest = 32;

// Whether boxes of 64 channels never reach into another group.
bool ends_in_box(int64_t groups, int64_t channels) { return groups == 1 || channels % block::row_elements == 0; }

// The filters in rows of the channels of x, per tap and map of conv2d. If they already are such rows, and tensor maps
// can read them, nothing is packed.
template <class T>
GatherGemm<T> filter_rows(const Gather<T>& g, Context& context) {
  const bool fprop = g.pass == Pass::fprop;
  const int64_t channels = fprop ? g.depth : g.maps, stride = fprop ? g.depth_stride : g.map_stride;
  const bool are_rows = stride == 1 && channels % 8 == 0 && reinterpret_cast<uintptr_t>(g.weight) % 16 == 0;
  if (!are_rows) return gather_gemm(g, fprop, 8, context);
  GatherGemm<T> work{g};
  work.filters = g.weight;
  work.width = channels;
  work.filter_strides = {g.group_stride, fprop ? g.map_stride : g.depth_stride, channels};
  return work;
}

// In every layout, images of one pixel lie as in channels_last. Tensor maps take only its strides.
template <class T>
Gather<T> in_channels_last(Gather<T> g) {
  const bool fprop = g.pass == Pass::fprop;
  Strides &x = fprop ? g.source_strides : g.target_strides, &y = fprop ? g.target_strides : g.source_strides;
  if (g.rows.in * g.cols.in == 1) x.row = x.col = x.image;
  if (g.rows.out * g.cols.out == 1) y.row = y.col = y.image;
  return g;
}

// With filters of one pixel, a batch whose pixels follow each other is one row, so tiles need not end with an image.
template <class T>
Gather<T> in_one_row(Gather<T> g) {
  const auto moves_by_one = [](const Axis& a) { return a.kernel == 1 && a.stride == 1 && a.pad == 0; };
  const int64_t pixels = g.rows.in * g.cols.in;
  const auto follow = [&](const Strides& s) { return s.row == g.cols.in * s.col && s.image == pixels * s.col; };
  if (!moves_by_one(g.rows) || !moves_by_one(g.cols) || !follow(g.source_strides) || !follow(g.target_strides) ||
      g.n * pixels >= dividend_limit) {
    return g;
  }
  g.cols.in = g.cols.out = g.n * pixels;
  g.rows.in = g.rows.out = g.n = 1;
  g.source_strides.row = g.source_strides.image = g.cols.in * g.source_strides.col;
  g.target_strides.row = g.target_strides.image = g.cols.in * g.target_strides.col;
  return g;
}

// The phases of an axis, in the order of their taps.
void set_phases(const Axis& a, Pass pass, int64_t count, PhaseAxis* axes) {
  for (int64_t phase = 0; phase < count; ++phase) axes[phase] = PhaseAxis(gather_axis(a, pass, phase));
  std::stable_sort(axes, axes + count, [](const PhaseAxis& a, const PhaseAxis& b) { return a.taps > b.taps; });
}

template <class T, class Tile>
void launch_gather(GatherWgmma<T>& work, const GatherGemm<T>& packed, const ChannelsLast<T>& source, Context& context) {
  if (work.g.pass == Pass::fprop) {
    launch_gather_wgmma<T, Tile, Pass::fprop>(work, packed, source, context);
  } else {
    launch_gather_wgmma<T, Tile, Pass::dgrad>(work, packed, source, context);
  }
}

// Wide tiles read the source less often, which matters most if threads copy it. With boxes, it costs more to copy the
// filters of a wide tile again and again.
template <class T>
void pointwise(const Gather<T>& g, Context& context) {
  const bool has_boxes = PixelRuns(g.n, g.rows.in * g.cols.in).has_boxes;
  if (g.maps <= 64) {
    launch_pointwise<T, Maps64>(g, context);
  } else if (g.maps <= 128 || (has_boxes && !keeps_filters<Maps256>(g.depth))) {
    launch_pointwise<T, Maps128>(g, context);
  } else {
    launch_pointwise<T, Maps256>(g, context);
  }
}

// Smaller tiles have fewer sums to add up. The larger one needs fewer copies by threads.
template <class T>
void pointwise_wgrad(const Elements<T>& e, Context& context) {
  const bool has_boxes = PixelRuns(e.n, e.rows.in * e.cols.in).has_boxes;
  if (e.maps > 64 && !has_boxes) {
    launch_pointwise_wgrad<T, Grad256x128>(e, context);
  } else if (e.maps > 64 && e.maps >= e.channels) {
    launch_pointwise_wgrad<T, Grad256x64>(e, context);
  } else if (e.channels > 128) {
    launch_pointwise_wgrad<T, Grad64x256>(e, context);
  } else {
    launch_pointwise_wgrad<T, Grad64x128>(e, context);
  }
}

}  // namespace

template <class T>
bool gather_on_hopper(const Gather<T>& batch, Context& context) {
  const Gather<T> g = in_one_row(in_channels_last(batch));
  const bool on_hopper = block::has_wgmma(gather_wgmma<T, Tile256x128, Pass::fprop>);
  const GatherAxis rows = gather_axis(g.rows, g.pass, 0), cols = gather_axis(g.cols, g.pass, 0);
  if (!on_hopper || g.n * rows.sources * cols.sources == 0) return false;
  if (min(g.depth, g.maps) < fewest || !ends_in_box(g.groups, g.depth)) return false;
  if (max(max(g.rows.in, g.cols.in), max(g.rows.out, g.cols.out)) >= dividend_limit) return false;
  block::set_context();
  const int64_t row = g.pass == Pass::fprop ? g.depth : g.maps;  // of the matrix of filters
  if (is_pointwise(g.source_strides, g.n, g.groups, row, g.rows, g.cols)) {
    Gather<T> product = g;
    product.source = block::aligned(g.source, g.n * g.depth * g.rows.in * g.cols.in * int64_t(sizeof(T)), context);
    product.weight = block::aligned(g.weight, g.depth * g.maps * int64_t(sizeof(T)), context);
    pointwise(product, context);
    return true;
  }
  GatherWgmma<T> work{g};
  work.row_phases = phases(g.rows, g.pass);
  work.col_phases = phases(g.cols, g.pass);
  if (max(work.row_phases, work.col_phases) > most_phases) return false;
  set_phases(g.rows, g.pass, work.row_phases, work.rows);
  set_phases(g.cols, g.pass, work.col_phases, work.cols);
  const bool has_maps = work.row_phases * work.col_phases <= most_mapped_phases;
  work.stores_boxes = g.target_strides.channel == 1 && has_maps && ends_in_box(g.groups, g.maps) &&
                      g.groups * g.maps % 8 == 0 && reinterpret_cast<uintptr_t>(g.target) % 16 == 0;
  // Choose the tile, whether it is a run, and the number of blocks that divide its slabs: what takes the least time. A
  // multiprocessor computes so many tiles one after another. To add up in a cluster takes 2,500 cycles, and one for 20
  // bytes that are copied to another block. On an H200, for 310 problems of batches of 1 to 64, this takes 1.5 % more
  // time than the best choice for each.
  const int64_t multiprocessors = block::device_attribute<cudaDevAttrMultiProcessorCount>();
  const double taps = double(g.rows.kernel * g.cols.kernel) / double(work.row_phases * work.col_phases);
  double least = never;
  int splits = 1;
  bool by_runs = false;
  decltype(&launch_gather<T, Tile256x128>) launch = nullptr;
  const auto consider = [&](auto tile) {
    using Tile = decltype(tile);
    for (const bool runs : {false, true}) {
      work.by_runs = runs;
      if (!shape_tiles<T, Tile>(work) || work.tiles() >= dividend_limit) continue;
      const int64_t together = work.tiles() <= multiprocessors ? 1 : Tile::together,
                    in_turn = ceil_div(work.tiles(), multiprocessors * together) * together;
      const double tap_cycles = Tile::tap_cycles(work.shape.patch_bytes, runs ? 1 : 1 / taps);
      const auto try_splits = [&](int n) {
        const double others = Tile::positions * Tile::maps * sizeof(float) * (n - 1) / n,
                     cycles = in_turn * ceil_div(work.slabs, n) * taps * tap_cycles + (n > 1 ? 2500 + others / 20 : 0);
        if (cycles >= least || !runs_at_once<T, Tile>(work, n)) return;
        least = cycles, splits = n, by_runs = runs, launch = launch_gather<T, Tile>;
      };
      try_splits(1);
      for (int n = 2; Tile::can_split && n <= min(most_splits, work.slabs); ++n) try_splits(n);
    }
  };
  consider(Tile256x128{});
  consider(Tile208x128{});
  consider(Tile128x128{});
  consider(Tile208x64{});
  consider(Tile128x64{});
  consider(Tile64x64{});
  if (!launch) return false;
  const GatherGemm<T> packed = filter_rows(g, context);
  const ChannelsLast<T> source(g.source, g.source_strides, g.n, g.groups, g.depth, rows.sources, cols.sources, context);
  work.splits = splits;
  work.by_runs = by_runs;
  launch(work, packed, source, context);
  return true;
}

template <class T>
bool wgrad_on_hopper(const Elements<T>& e, Context& context) {
  const bool on_hopper = block::has_wgmma(wgrad_wgmma<T, Wgrad128x384, false>);
  const int64_t pixels = e.n * e.rows.out * e.cols.out;
  if (!on_hopper || min(e.channels, e.maps) < fewest || pixels == 0) return false;
  block::set_context();
  if (is_pointwise(e.x_strides, e.n, e.groups, e.channels, e.rows, e.cols)) {
    Elements<T> product = e;
    product.x = block::aligned(e.x, pixels * e.channels * int64_t(sizeof(T)), context);
    product.y = block::aligned(e.y, pixels * e.maps * int64_t(sizeof(T)), context);
    pointwise_wgrad(product, context);
    return true;
  }
  if (!has_tap_map(e.rows) || !has_tap_map(e.cols)) return false;
  if (e.taps() > most_taps || pixels >= dividend_limit || e.rows.in * e.cols.in == 0) return false;
  if (e.groups * ceil_div(e.maps, int64_t(64)) * e.taps() * ceil_div(e.channels, int64_t(64)) > most_grid) return false;
  const ChannelsLast<T> x(e.x, e.x_strides, e.n, e.groups, e.channels, e.rows.in, e.cols.in, context),
      dy(e.y, e.y_strides, e.n, e.groups, e.maps, e.rows.out, e.cols.out, context);
  WgradPlan best{never};
  decltype(&launch_wgrad_wgmma<T, Wgrad128x384>) launch = nullptr;
  const auto consider = [&](auto tile) {
    using Tile = decltype(tile);
    const WgradPlan plan = plan_wgrad<T, Tile>(e);
    if (plan.cycles < best.cycles) best = plan, launch = launch_wgrad_wgmma<T, Tile>;
  };
  if (Patch64::supports(e.rows, e.cols)) {
    consider(Patch64{});
    consider(Patch32{});
    consider(Patch16{});
  } else if (Patch16x5::supports(e.rows, e.cols)) {
    consider(Patch16x5{});
  } else if (e.taps() == 9) {
    consider(Wgrad64x288{});
    consider(Wgrad64x144{});
  }
  consider(Wgrad128x384{});
  consider(Wgrad64x576{});
  consider(Wgrad256x64{});
  consider(Wgrad128x256{});
  consider(Wgrad128x128{});
  consider(Wgrad128x64{});
  launch(e, best, x, dy, context);
  return true;
}

template bool gather_on_hopper(const Gather<half>&, Context&);
template bool wgrad_on_hopper(const Elements<half>&, Context&);
template bool gather_on_hopper(const Gather<bfloat16>&, Context&);
template bool wgrad_on_hopper(const Elements<bfloat16>&, Context&);

}  // namespace tp::conv
#endif
