// Convolution as a matrix product (§16.4, Figs. 16.16 to 16.18): unrolling gives every output pixel a column with all
// that it reads; the filters are the rows of the other factor as they lie; the BLAS multiplies.
//
//   fprop   y      = filters  x  unrolled(x)             [maps, taps] [taps, pixels]
//   wgrad   dw     = dy  x  unrolled(x)^T                [maps, pixels] [pixels, taps]
//   dgrad   dx     = fold(filters^T  x  dy)              [taps, maps] [maps, pixels], and back what was unrolled
//
// The book unrolls sample by sample to bound the matrix, which leaves small products where the maps are small. Here a
// product takes as many pixels as a workspace of fixed size holds, of many samples or of a part of one; groups are its
// batch. dgrad cuts dx into tiles and recomputes what neighbouring tiles share, so that every pixel of dx is finished
// in one piece. The gradients of half types are products in float: their sums go on after the product, and are rounded
// once.
#include "conv/packed.h"
#include "conv/unroll.h"

namespace tp::conv {
namespace {

constexpr int64_t workspace_bytes = 256 << 20;

// How many columns the workspace holds of matrices with `rows` rows in all.
int64_t columns_for(int64_t rows, int64_t bytes) { return max(int64_t(1), workspace_bytes / (rows * bytes)); }

template <class T>
constexpr bool in_accumulators(const T*) {
  return std::is_same<T, acc_t<T>>::value;
}

template <class T>
void fprop(const Elements<T>& e, Context& context) {
  const int64_t depth = e.channels * e.taps() + (e.bias ? 1 : 0);
  const T* filters = e.weight;
  if (e.bias) {
    T* with_bias = context.workspace<T>(e.m * depth);
    each(context, "append_bias", e.m * depth, WithBias<T>{e, with_bias});
    filters = with_bias;
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

template <class T>
void wgrad(const Elements<T>& e, Context& context) {
  using A = acc_t<T>;
  const int64_t depth = e.channels * e.taps();
  const Tiling tiling(e.n, e.rows.out, e.cols.out, columns_for(e.groups * depth + e.m, sizeof(A)));
  A* unrolled = context.workspace<A>(e.groups * depth * tiling.size.pixels());
  A* gradient = context.workspace<A>(e.m * tiling.size.pixels());
  A* sum = in_accumulators(e.weight) ? reinterpret_cast<A*>(e.weight) : context.workspace<A>(e.weights());
  A* product = tiling.count() > 1 ? context.workspace<A>(e.weights()) : sum;
  for (int64_t i = 0; i < tiling.count(); ++i) {
    const Tile tile = tiling[i];
    const int64_t columns = tile.pixels();
    unroll(context, e, tile, depth, unrolled);
    each(context, "gather_maps", e.m * columns, Maps<T, A, true>{e, tile, gradient});
    context.gemm(Gemm{dtype_of<A>::value, e.groups, e.maps, depth, columns,
                      Matrix{gradient, columns, 1, e.maps * columns}, Matrix{unrolled, 1, columns, depth * columns},
                      product, e.maps * depth});
    if (sum != product) each(context, "add_tile", e.weights(), Copy<A, A>{product, sum, e.weights(), i > 0});
  }
  if (!in_accumulators(e.weight)) each(context, "round", e.weights(), Copy<A, T>{sum, e.weight, e.weights(), false});
}

// How many outputs read `inputs` neighbours of an axis, at most.
int64_t readers_of(const Axis& axis, int64_t inputs) {
  return min(axis.out, (inputs - 1 + (axis.kernel - 1) * axis.dilation) / axis.stride + 1);
}
template <class T>
int64_t readers_of(const Elements<T>& e, const Tile& t) {
  return t.images * readers_of(e.rows, t.height) * readers_of(e.cols, t.width);
}

// Tiles of dx that at most `columns` outputs read, if there are such.
template <class T>
Tiling tile_inputs(const Elements<T>& e, int64_t columns) {
  Tiling tiling(e.n, e.rows.in, e.cols.in, e.n * e.rows.in * e.cols.in);
  while (readers_of(e, tiling.size) > columns && tiling.size.pixels() > 1) {
    tiling = Tiling(e.n, e.rows.in, e.cols.in, tiling.size.pixels() / 2);
  }
  return tiling;
}

// The outputs that read pixels of `tile` of dx, by any tap.
template <class T>
Tile readers(const Elements<T>& e, const Tile& tile) {
  const int64_t h = e.rows.first_reader(tile.h, e.rows.kernel - 1), w = e.cols.first_reader(tile.w, e.cols.kernel - 1);
  const int64_t below = e.rows.first_reader(tile.h + tile.height, 0),
                right = e.cols.first_reader(tile.w + tile.width, 0);
  return {tile.image, h, w, tile.images, max(below - h, int64_t(0)), max(right - w, int64_t(0))};
}

template <class T>
void dgrad(const Elements<T>& e, Context& context) {
  using A = acc_t<T>;
  const int64_t depth = e.channels * e.taps();
  const Tiling tiling = tile_inputs(e, columns_for(e.groups * depth + e.m, sizeof(A)));
  const int64_t most = readers_of(e, tiling.size);
  const A* filters = reinterpret_cast<const A*>(e.weight);
  if (!in_accumulators(e.weight)) {
    A* wide = context.workspace<A>(e.weights());
    each(context, "widen", e.weights(), Copy<T, A>{e.weight, wide, e.weights(), false});
    filters = wide;
  }
  A* gradient = context.workspace<A>(e.m * most);
  A* unrolled = context.workspace<A>(e.groups * depth * most);
  for (int64_t i = 0; i < tiling.count(); ++i) {
    const Tile tile = tiling[i];
    const Tile from = readers(e, tile);
    const int64_t columns = from.pixels();
    if (columns > 0) {
      each(context, "gather_maps", e.m * columns, Maps<T, A, true>{e, from, gradient});
      context.gemm(Gemm{dtype_of<A>::value, e.groups, depth, columns, e.maps, Matrix{filters, 1, depth, e.maps * depth},
                        Matrix{gradient, columns, 1, e.maps * columns}, unrolled, depth * columns});
    }
    each(context, "fold", e.c * tile.pixels(), Fold<T>{e, tile, from, unrolled});
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
