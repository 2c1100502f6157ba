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
#include "block/fma_tile.cuh"
#include "block/slices.cuh"
#include "layers/cut.h"
#include "layers/short_inner.cuh"

namespace tp::linear {
namespace {

// How a factor is copied. If the inner dimension is contiguous, each warp copies eight elements of it for four sides,
// element by element. Otherwise it copies 16 bytes of adjacent sides at a time, or single elements if strides do not
// allow that.
enum class Order { inner, sides, any };

// One of the factors: `sides` rows of A or columns of B, each of `inner` elements; one of the strides is 1.
template <class T>
struct Factor {
  const T* data;
  int64_t side_stride, inner_stride, sides;

  Order order() const {
    constexpr int64_t vector = 16 / int64_t(sizeof(T));
    if (inner_stride == 1) return Order::inner;
    const bool whole = side_stride == 1 && inner_stride % vector == 0 && sides % vector == 0;
    return whole && reinterpret_cast<uintptr_t>(data) % 16 == 0 ? Order::sides : Order::any;
  }
};

// Copies slabs of a factor to [slab][pitch] in shared memory.
template <class Tile, int tile_sides, int pitch, Order order, class T>
class FactorLoader {
  static constexpr int width = order == Order::sides ? 16 / int(sizeof(T)) : 1, across = tile_sides / width,
                       turns = tile_sides * Tile::slab / width / Tile::threads, eighths = Tile::slab / 8;
  static constexpr int k_step = order == Order::inner ? 0 : Tile::threads / across,
                       side_step = order == Order::inner ? Tile::threads / Tile::slab : 0;
  static_assert(Tile::threads % across == 0 && Tile::threads % Tile::slab == 0 && turns > 0, "whole turns");

 public:
  TP_DEVICE FactorLoader(const Factor<T>& f, int64_t first_side, int64_t first, int64_t last) {
    const int t = int(threadIdx.x), lane = t % 32, warp = t / 32;
    k_ = order == Order::inner ? warp % eighths * 8 + lane % 8 : t / across;
    side_ = order == Order::inner ? warp / eighths * 4 + lane / 8 : t % across * width;
    from_ = f.data + (first_side + side_) * f.side_stride + (first + k_) * f.inner_stride;
    step_ = side_step * f.side_stride + k_step * f.inner_stride;
    slab_step_ = Tile::slab * f.inner_stride;
    sides_ = int(min(f.sides - first_side, int64_t(tile_sides))), left_ = last - first;
  }

  // Begins to copy the next slab; elements that do not exist are 0.
  TP_DEVICE void load(T* slab) {
    if (sides_ == tile_sides && left_ >= Tile::slab) {
      copy(slab, [](int) { return true; });
    } else {
      copy(slab, [&](int i) { return side_ + i * side_step < sides_ && k_ + i * k_step < left_; });
    }
    from_ += slab_step_;
    left_ -= Tile::slab;
  }

 private:
  template <class Exists>
  TP_DEVICE void copy(T* slab, const Exists& exists) const {
    T* const to = slab + k_ * pitch + side_;
    const T* from = from_;
#pragma unroll
    for (int i = 0; i < turns; ++i) {
      block::copy_or_zero<width* int(sizeof(T))>(to + i * (k_step * pitch + side_step), from, exists(i));
      from += step_;
    }
  }

  int k_, side_, sides_;
  int64_t left_, step_, slab_step_;
  const T* from_;
};

template <class T>
struct Product {
  Factor<T> a, b;
  const T* bias;
  T* out;
  acc_t<T>* sums;  // [slices][rows][cols]; null if there is one slice, which is the result
  int64_t inner, row_tiles, col_tiles, slices;
};

// Writes four adjacent elements of a row, of which `count` exist. `aligned`: the row begins at a multiple of four
// elements.
template <class T, class A>
TP_DEVICE void write_quad(T* to, const A* values, int64_t count, bool aligned) {
  block::Vector<T, 4> v{{T(values[0]), T(values[1]), T(values[2]), T(values[3])}};
  if (aligned) {
    *reinterpret_cast<block::Vector<T, 4>*>(to) = v;
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k < count) to[k] = v.v[k];
    }
  }
}

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
      write_quad(p.sums + slice * p.a.sides * p.b.sides + at, quad, cols - col, p.b.sides % 4 == 0);
    } else {
      write_quad(p.out + at, quad, cols - col, p.b.sides % 4 == 0);
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
