// Convolution as a matrix product (§16.4, Figs. 16.16 to 16.18). Unrolling gives every output pixel a column with all
// elements of x that it reads; the filters, as they are in memory, are the rows of the other factor; the BLAS
// multiplies.
//
//   fprop   y      = filters  x  unrolled(x)             [maps, taps] [taps, pixels]
//   wgrad   dw     = dy  x  unrolled(x)^T                [maps, pixels] [pixels, taps]
//   dgrad   dx     = fold(filters^T  x  dy)              [taps, maps] [maps, pixels]; fold is the adjoint of unrolling
//
// The book unrolls one sample at a time to limit the size of the matrix, which makes small products if the maps are
// small. Here a product takes as many pixels as a workspace of fixed size can hold, whether of many samples or of a
// part of one; groups are the batch of the product. dgrad divides dx into tiles and recomputes what neighbouring tiles
// share, so every pixel of dx is finished within one tile. For half types, the products of the gradients are in float:
// they are added up in float and rounded once (im2col_gradients.h). The bias is one more tap, for an input that is
// always one.
#include "conv/im2col_gradients.h"
#include "conv/packed.h"

namespace tp::conv {
namespace {

// Fig. 16.18: one thread per channel and output pixel. It copies the elements that its pixel reads from its channel,
// one element per row of the matrix, so neighbouring threads write neighbouring columns. A group has `depth` rows: its
// taps and, for the bias, a row of ones. The threads share nothing, so there is no barrier. Padding, stride, dilation
// and groups are not in the figure.
template <class T, class Out>
struct UnrollKernel {
  static constexpr int threads = 256;
  Elements<T> e;
  Tile tile;
  int64_t depth;
  Out* matrix;  // [groups, depth, W_unroll]

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto X = e.bind(block);
    const int64_t W_unroll = tile.pixels(), count = e.c * W_unroll;
    const auto X_unroll = block.global("X_unroll", matrix, e.groups * depth * W_unroll);
    for (int64_t first = block.index().x * threads; first < count; first += block.grid().x * threads) {
      block.phase("unroll", [&](int t) {
        if (first + t >= count) return;
        const int64_t c = (first + t) / W_unroll, w_unroll = (first + t) % W_unroll, c_of_group = c % e.channels;
        const Pixel out(tile, w_unroll);
        const int64_t h_base = c / e.channels * depth + c_of_group * e.taps();
        for (int64_t p = 0; p < e.rows.kernel; ++p) {
          for (int64_t q = 0; q < e.cols.kernel; ++q) {
            const int64_t h_unroll = h_base + p * e.cols.kernel + q;
            X_unroll[h_unroll * W_unroll + w_unroll] =
                Out(X.padded(out.image, c, e.rows.source(out.h, p), e.cols.source(out.w, q)));
          }
        }
        if (c_of_group == 0 && depth > e.channels * e.taps()) {
          X_unroll[(h_base + depth - 1) * W_unroll + w_unroll] = Out(1.0f);
        }
      });
    }
  }
};

}  // namespace

template <class T, class Out>
void unroll(Context& context, const Elements<T>& e, const Tile& tile, int64_t depth, Out* matrix) {
  if (!context.device.cuda && !simt::session()) return unroll_on_host(context, e, tile, depth, matrix);
  using Kernel = UnrollKernel<T, Out>;
  const int64_t blocks = min(ceil_div(e.c * tile.pixels(), int64_t(Kernel::threads)), max_grid);
  simt::launch(context, "unroll", {blocks}, Kernel::threads, 0, Kernel{e, tile, depth, matrix});
}

namespace {

template <class T>
void fprop(const Elements<T>& e, Context& context) {
  const int64_t depth = e.channels * e.taps() + (e.bias ? 1 : 0);
  const T* filters;
  if (e.bias) {
    T* with_bias = context.workspace<T>(e.m * depth);
    each(context, "append_bias", e.m * depth, WithBias<T>{e, with_bias});
    filters = with_bias;
  } else {
    filters = filter_matrix<T>(e, context);
  }
  const Tiling tiling(e.n, e.rows.out, e.cols.out, columns_for(e.groups * depth + e.m, sizeof(T)));
  T* unrolled = context.workspace<T>(e.groups * depth * tiling.size.pixels());
  T* product = context.workspace<T>(e.m * tiling.size.pixels());
  for (int64_t i = 0; i < tiling.count(); ++i) {
    const Tile tile = tiling[i];
    const int64_t columns = tile.pixels();
    unroll(context, e, tile, depth, unrolled);
    context.gemm(Gemm{dtype_of<T>::value, e.groups, e.maps, columns, depth, Matrix{filters, depth, 1, e.maps * depth},
                      Matrix{unrolled, columns, 1, depth * columns}, product, e.maps * columns});
    each(context, "scatter_maps", e.m * columns, Maps<T, T, false>{e, tile, product});
  }
}

}  // namespace

void im2col_gemm(const Args& args, Context& context) {
  dispatch(FloatTypes{}, args.dtype, "conv2d", [&](auto type) {
    using T = typename decltype(type)::type;
    const auto run = [&](const Args& images) {
      const Elements<T> e(images);
      switch (args.pass) {
        case Pass::fprop:
          return fprop(e, context);
        case Pass::dgrad:
          return dgrad(e, context);
        case Pass::wgrad:
          return wgrad(e, context);
      }
    };
    context.device.cuda ? run(args) : in_nchw<T>(args, context, run);
  });
}

}  // namespace tp::conv
