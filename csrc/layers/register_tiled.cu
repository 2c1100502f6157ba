// The fully connected layer as a product whose sums stay in registers (block/fma_tile.cuh), with the bias added in the
// same launch. Both factors are copied to shared memory slab by slab, and transposed if the inner dimension is the
// contiguous one.
//
// Few outputs with a long inner dimension would occupy few multiprocessors. So the inner dimension is divided into
// slices, each computed by different blocks, and the sums are added afterwards in the order of the slices. Long sums
// are also divided to limit their rounding errors (cut.h). A short inner dimension has a kernel of its own
// (short_inner.cuh).
#include "layers/linear.h"
#ifdef __CUDACC__
#include "block/factors.cuh"
#include "block/launch.cuh"
#include "block/slices.h"
#include "layers/cut.h"
#include "layers/short_inner.cuh"

namespace tp::linear {
namespace {

using block::Factor;
using block::FactorLoader;
using block::Order;

template <class T>
struct Product {
  Factor<T> a, b;
  const T* bias;
  T* out;
  acc_t<T>* sums;  // [slices][rows][cols]; null if there is one slice, which is the result
  int64_t inner, row_tiles, col_tiles, slices;
};

template <class Tile, Order a_order, Order b_order, class T>
__global__ void __launch_bounds__(Tile::threads, Tile::residents)
    register_tiled_kernel(const __grid_constant__ Product<T> p) {
  using A = acc_t<T>;
  extern __shared__ __align__(16) unsigned char pool[];
  T* const stages = reinterpret_cast<T*>(pool);
  const int64_t first_row = blockIdx.x / unsigned(p.col_tiles) * Tile::rows,
                first_col = blockIdx.x % unsigned(p.col_tiles) * Tile::cols, slice = blockIdx.y;
  const int64_t slabs = ceil_div(p.inner, int64_t(Tile::slab)), first_slab = slice * slabs / p.slices,
                last_slab = (slice + 1) * slabs / p.slices;
  const int64_t first = first_slab * Tile::slab, last = min(last_slab * Tile::slab, p.inner);
  FactorLoader<Tile, Tile::rows, Tile::row_pitch, a_order, T> from_a(p.a, first_row, first, last);
  FactorLoader<Tile, Tile::cols, Tile::col_pitch, b_order, T> from_b(p.b, first_col, first, last);
  A sum[Tile::row_side][Tile::col_side] = {};
  block::for_slabs<Tile>(
      int(last_slab - first_slab), stages,
      [&](T* stage) {
        from_a.load(stage);
        from_b.load(stage + Tile::slab * Tile::row_pitch);
      },
      [&](const T* stage) { block::add_slab<Tile>(stage, sum); });
  const int64_t rows = p.a.sides - first_row, cols = p.b.sides - first_col;
  const int64_t corner = first_row * p.b.sides + first_col;
  block::store_sums<Tile>(reinterpret_cast<A*>(pool), sum, [&](int row, int col, const A* values) {
    if (row >= rows || col >= cols) return;
    A quad[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool shifted = p.bias && slice == 0 && col + k < cols;
      quad[k] = shifted ? values[k] + A(p.bias[first_col + col + k]) : values[k];
    }
    const int64_t at = corner + row * p.b.sides + col;
    if (p.sums) {
      block::write_quad(p.sums + slice * p.a.sides * p.b.sides + at, quad, cols - col, p.b.sides % 4 == 0);
    } else {
      block::write_quad(p.out + at, quad, cols - col, p.b.sides % 4 == 0);
    }
  });
}

template <class Tile, Order a_order, Order b_order, class T>
void launch(const Product<T>& p, Context& context) {
  constexpr int bytes =
      max(Tile::stages * Tile::stage_values * int(sizeof(T)), block::pool_values<Tile>() * int(sizeof(acc_t<T>)));
  const auto kernel = register_tiled_kernel<Tile, a_order, b_order, T>;
  block::allow_shared_memory(kernel, bytes);
  const dim3 grid(unsigned(p.row_tiles * p.col_tiles), unsigned(p.slices));
  kernel<<<grid, Tile::threads, bytes, cudaStream_t(context.stream)>>>(p);
  check_launch("linear");
}

template <class Tile, class T>
void multiply(Product<T> p, int64_t slices, Context& context) {
  p.row_tiles = ceil_div(p.a.sides, int64_t(Tile::rows));
  p.col_tiles = ceil_div(p.b.sides, int64_t(Tile::cols));
  p.slices = slices;
  const int64_t size = p.a.sides * p.b.sides;
  p.sums = slices > 1 ? context.workspace<acc_t<T>>(slices * size) : nullptr;
  const Order a = p.a.order(), b = p.b.order();
  if (a == Order::inner && b == Order::inner) {
    launch<Tile, Order::inner, Order::inner>(p, context);
  } else if (a == Order::inner && b == Order::sides) {
    launch<Tile, Order::inner, Order::sides>(p, context);
  } else if (a == Order::sides && b == Order::sides) {
    launch<Tile, Order::sides, Order::sides>(p, context);
  } else {
    launch<Tile, Order::any, Order::any>(p, context);
  }
  if (p.sums) block::sum_slices(p.sums, slices, size, p.out, context);
}

// The kernels' tiles, in the order of tiles[]. Half types and float64 have only the second.
constexpr int pad = 4;  // spreads a warp's stores for four sides over the banks
using Tile0 = block::FmaTile<128, 64, 8, 8, 16, 3, 3, 8, 1, pad>;
using Tile1 = block::FmaTile<64, 64, 8, 8, 32, 4, 2, 4, 4, pad>;
using Tile2 = block::FmaTile<64, 32, 8, 4, 32, 4, 2, 8, 4, pad>;
using Tile3 = block::FmaTile<32, 32, 4, 4, 32, 6, 3, 8, 4, pad>;
using HalfTile = block::FmaTile<64, 64, 8, 8, 32, 4, 2, 8, 4, 2 * pad>;
using DoubleTile = block::FmaTile<64, 64, 4, 4, 16, 3, 2, 8, 1, pad>;

}  // namespace

void register_tiled(const Args& args, Context& context) {
  const Gemm& g = args.product;
  if (is_short(g)) return multiply_short(g, args.bias, context);
  const Cut cut = cheapest_cut(g);
  dispatch(FloatTypes{}, g.dtype, "linear", [&](auto type) {
    using T = typename decltype(type)::type;
    Product<T> p{};
    p.a = {static_cast<const T*>(g.a.data), g.a.row_stride, g.a.col_stride, g.rows};
    p.b = {static_cast<const T*>(g.b.data), g.b.col_stride, g.b.row_stride, g.cols};
    p.bias = static_cast<const T*>(args.bias);
    p.out = static_cast<T*>(g.c);
    p.inner = g.inner;
    if constexpr (sizeof(T) == 4) {
      const auto run = cut.tile == 0   ? multiply<Tile0, T>
                       : cut.tile == 1 ? multiply<Tile1, T>
                       : cut.tile == 2 ? multiply<Tile2, T>
                                       : multiply<Tile3, T>;
      run(p, cut.slices, context);
    } else {
      multiply<std::conditional_t<sizeof(T) == 2, HalfTile, DoubleTile>>(p, cut.slices, context);
    }
  });
}

}  // namespace tp::linear
#endif
