// The direct convolution (§16.3, Figs. 16.13 to 16.15): a thread an output pixel, a block a tile of 16 x 16 of them.
// The grid covers maps by tiles by samples. Each thread reads all it needs from global memory, x once for every map and
// the filter once for every pixel: that traffic is what tiled and the matrix forms save.
//
// Fig. 16.13 divides H_out and W_out by TILE_WIDTH and so drops the last, partial tiles: here the count is rounded up,
// and lanes outside the map do nothing. CUDA takes 65,535 blocks along y and z, so a block strides over tiles and
// samples.
//
// dgrad is the same kernel over the pixels of dx. wgrad has a thread a weight, which sums over all samples and pixels
// in turn: simple, and as slow as the filters are small.
#include "conv/elements.h"

namespace tp::conv {
namespace {

constexpr int tile_width = 16, threads = tile_width * tile_width;
constexpr int64_t max_grid_x = 2147483647, max_grid_yz = 65535;

template <class T, Pass pass>
struct Tiles {
  Elements<T> e;
  int64_t maps, height, width;  // of what is written

  TP_HD int64_t tiles_across() const { return ceil_div(width, int64_t(tile_width)); }
  TP_HD int64_t tiles() const { return ceil_div(height, int64_t(tile_width)) * tiles_across(); }

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto conv = e.bind(block);
    const auto first = block.index(), step = block.grid();
    for (int64_t image = first.z; image < e.n; image += step.z) {
      for (int64_t tile = first.y; tile < tiles(); tile += step.y) {
        for (int64_t map = first.x; map < maps; map += step.x) {
          block.phase("convolve", [&](int t) {
            const int64_t h = tile / tiles_across() * tile_width + t / tile_width;
            const int64_t w = tile % tiles_across() * tile_width + t % tile_width;
            if (h >= height || w >= width) return;
            if constexpr (pass == Pass::fprop) {
              conv.fprop(image, map, h, w);
            } else {
              conv.dgrad(image, map, h, w);
            }
          });
        }
      }
    }
  }

  void launch(Context& context) const {
    const simt::Dim grid{min(maps, max_grid_x), min(tiles(), max_grid_yz), min(e.n, max_grid_yz)};
    simt::launch(context, "direct", grid, threads, 0, *this);
  }
};

template <class T>
struct Weights {
  Elements<T> e;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto conv = e.bind(block);
    for (int64_t first = block.index().x * threads; first < e.weights(); first += block.grid().x * threads) {
      block.phase("correlate", [&](int t) {
        const int64_t i = first + t, tap = i % e.taps(), filter = i / e.taps();
        if (i >= e.weights()) return;
        conv.wgrad(filter / e.channels, filter % e.channels, tap / e.cols.kernel, tap % e.cols.kernel);
      });
    }
  }

  void launch(Context& context) const {
    const simt::Dim grid{min(ceil_div(e.weights(), int64_t(threads)), max_grid_x)};
    simt::launch(context, "direct", grid, threads, 0, *this);
  }
};

}  // namespace

void direct(const Args& args, Context& context) {
  dispatch(FloatTypes{}, args.dtype, "conv2d", [&](auto type) {
    using T = typename decltype(type)::type;
    const Elements<T> e(args);
    switch (args.pass) {
      case Pass::fprop:
        return Tiles<T, Pass::fprop>{e, e.m, e.rows.out, e.cols.out}.launch(context);
      case Pass::dgrad:
        return Tiles<T, Pass::dgrad>{e, e.c, e.rows.in, e.cols.in}.launch(context);
      case Pass::wgrad:
        return Weights<T>{e}.launch(context);
    }
  });
}

}  // namespace tp::conv
