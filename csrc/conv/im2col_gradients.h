// The gradients of the convolution as matrix products (im2col_gemm): wgrad multiplies by the unrolled x of fprop, and
// dgrad multiplies first and then folds.
#pragma once
#include "conv/unroll.h"

namespace tp::conv {

constexpr int64_t workspace_bytes = 256 << 20;

// The number of columns of matrices with `rows` rows in all that the workspace can hold.
inline int64_t columns_for(int64_t rows, int64_t bytes) { return max(int64_t(1), workspace_bytes / (rows * bytes)); }

template <class T>
constexpr bool in_accumulators(const T*) {
  return std::is_same<T, acc_t<T>>::value;
}

// The filters as an operand of the BLAS, in the dtype of its accumulators. The BLAS chooses a kernel, and with it the
// order of additions, by the alignment of its operands. Filters that are not aligned as new tensors are copied, so that
// the bits of the result do not depend on their address.
template <class A, class T>
const A* filter_matrix(const Elements<T>& e, Context& context) {
  const uintptr_t alignment = context.device.cuda ? 256 : 64;
  if constexpr (std::is_same<T, A>::value) {
    if (reinterpret_cast<uintptr_t>(e.weight) % alignment == 0) return e.weight;
  }
  A* const copy = context.workspace<A>(e.weights());
  each(context, "copy_filters", e.weights(), Copy<T, A>{e.weight, copy, e.weights(), false});
  return copy;
}

// The columns of a tile of the unrolled x, computed as in im2col_gemm.cu.
template <class T, class Out>
void unroll(Context& context, const Elements<T>& e, const Tile& tile, int64_t depth, Out* matrix);

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

// The greatest number of outputs that read any of `inputs` adjacent elements of an axis.
inline int64_t readers_of(const Axis& axis, int64_t inputs) {
  return min(axis.out, (inputs - 1 + (axis.kernel - 1) * axis.dilation) / axis.stride + 1);
}
template <class T>
int64_t readers_of(const Elements<T>& e, const Tile& t) {
  return t.images * readers_of(e.rows, t.height) * readers_of(e.cols, t.width);
}

// Tiles of dx each of which at most `columns` outputs read, if there are such tiles.
template <class T>
Tiling tile_inputs(const Elements<T>& e, int64_t columns) {
  Tiling tiling(e.n, e.rows.in, e.cols.in, e.n * e.rows.in * e.cols.in);
  while (readers_of(e, tiling.size) > columns && tiling.size.pixels() > 1) {
    tiling = Tiling(e.n, e.rows.in, e.cols.in, tiling.size.pixels() / 2);
  }
  return tiling;
}

// The outputs that read any pixel of `tile` of dx.
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
  const A* filters = filter_matrix<A>(e, context);
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

}  // namespace tp::conv
