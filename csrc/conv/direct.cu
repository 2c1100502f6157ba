// The direct convolution (§16.3, Figs. 16.13 to 16.15): one thread per output pixel, and one block per tile of
// tile_width x tile_width pixels. The grid covers maps by tiles by samples.
//
// Each thread runs the three inner loops of Fig. 16.6 for its pixel and shares nothing, so there is no barrier. It
// reads all of its operands from global memory: x once for every map, and the filter once for every pixel. `tiled` and
// the matrix forms save this traffic.
//
// Fig. 16.13 divides H_out and W_out by TILE_WIDTH and so omits partial tiles; here the number of tiles is rounded up,
// and threads outside the map do nothing. CUDA allows 65,535 blocks along y and z, so blocks stride over tiles and
// samples. Groups, padding, stride and dilation are not in the figure: Axis::source says which element of x to read,
// and padding reads as zero. The figure is the forward pass; the gradients are in direct_gradients.h.
#include "conv/direct_gradients.h"

namespace tp::conv {
namespace {

template <class T>
struct ConvLayerForwardKernel {
  Elements<T> e;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using A = acc_t<T>;
    const auto conv = e.bind(block);
    const auto first = block.index(), step = block.grid();
    const int64_t W_grid = ceil_div(e.cols.out, int64_t(tile_width));
    const int64_t H_grid = ceil_div(e.rows.out, int64_t(tile_width));
    for (int64_t n = first.z; n < e.n; n += step.z) {
      for (int64_t tile = first.y; tile < H_grid * W_grid; tile += step.y) {
        for (int64_t m = first.x; m < e.m; m += step.x) {
          block.phase("convolve", [&](int t) {
            const int64_t h = tile / W_grid * tile_width + t / tile_width;
            const int64_t w = tile % W_grid * tile_width + t % tile_width;
            if (h >= e.rows.out || w >= e.cols.out) return;
            const int64_t group = m / e.maps * e.channels;  // the group's first channel
            A acc = 0;
            for (int64_t c = 0; c < e.channels; ++c) {       // sum over all input channels
              for (int64_t p = 0; p < e.rows.kernel; ++p) {  // loop over the filter
                for (int64_t q = 0; q < e.cols.kernel; ++q) {
                  const T weight = conv.weight[e.weight_at(m, c, p, q)];
                  acc += conv.padded(n, group + c, e.rows.source(h, p), e.cols.source(w, q)) * A(weight);
                }
              }
            }
            if (e.bias) acc += A(T(conv.bias[m]));
            conv.y[e.y_at(n, m, h, w)] = T(acc);
          });
        }
      }
    }
  }
};

}  // namespace

void direct(const Args& args, Context& context) {
  dispatch(FloatTypes{}, args.dtype, "conv2d", [&](auto type) {
    using T = typename decltype(type)::type;
    const Elements<T> e(args);
    switch (args.pass) {
      case Pass::fprop:
        return launch_tiles(context, e.m, e.rows.out, e.cols.out, e.n, ConvLayerForwardKernel<T>{e});
      case Pass::dgrad:
        return launch_tiles(context, e.c, e.rows.in, e.cols.in, e.n, ConvLayerInputGradientKernel<T>{e});
      case Pass::wgrad:
        const int64_t blocks = min(ceil_div(e.weights(), int64_t(direct_threads)), max_grid);
        return simt::launch(context, "direct", {blocks}, direct_threads, 0, ConvLayerWeightGradientKernel<T>{e});
    }
  });
}

}  // namespace tp::conv
