// All products in one launch: each block finds the segment of its tile from the offsets, which stay on the device.
//
//   product   a tile is some rows of one segment by some columns; the inner dimension is that of the weights
//   outer     a tile is a part of the matrix of one segment; the inner dimension is a chunk of the rows of the segment,
//             and the chunks of long segments are added up by another kernel
//
// The sums of a tile stay in registers (block/fma_tile.cuh). Half types use the tensor cores of Hopper where they can
// (grouped_gemm_sm90a.cu).
#include "segmented/matmul.h"
#ifdef __CUDACC__
#include "block/factors.cuh"
#include "core/division.h"
#include "segmented/grouped_gemm_sm90a.h"
#include "segmented/row_tiles.cuh"

namespace tp::segment_matmul {
namespace {

using block::Factor;
using block::FactorLoader;
using block::Order;

constexpr int pad = 4;  // spreads a warp's stores for four rows over the banks
using FloatTile = block::FmaTile<128, 64, 8, 8, 16, 3, 3, 8, 1, pad>;
using WideFloatTile = block::FmaTile<64, 128, 8, 8, 32, 2, 3, 16, 1, pad>;  // for products
using HalfTile = block::FmaTile<64, 64, 8, 8, 32, 4, 2, 8, 4, 2 * pad>;
using DoubleTile = block::FmaTile<64, 64, 4, 4, 16, 3, 2, 8, 1, pad>;

template <class T>
using TileOf = std::conditional_t<sizeof(T) == 4, FloatTile, std::conditional_t<sizeof(T) == 2, HalfTile, DoubleTile>>;

// The work of a product for each of its rows, with the elements that fill the tiles.
template <class Tile>
int64_t padded_work(const Args& args) {
  return ceil_div(args.cols, int64_t(Tile::cols)) * Tile::cols * ceil_div(args.inner, int64_t(Tile::slab)) * Tile::slab;
}

// Wide tiles have fewer of the rows, which are copied by 4 bytes: 262144 rows by 256 x 256 take 0.783 ms on an H200,
// and 0.859 by FloatTile.
inline bool is_for_wide_tiles(const Args& args) {
  return 0.91 * double(padded_work<WideFloatTile>(args)) <= double(padded_work<FloatTile>(args));
}

template <class T>
struct Grouped {
  RowTiles<int64_t> tiles;  // or chunks of `height` rows, for outer
  const T *x, *other;
  T* out;
  acc_t<T>* sums;  // outer: [chunk_slots][inner][cols]
  int64_t n, inner, cols, row_tiles, col_tiles;
  int height;
};

// Computes the sums over first..last of the tile of a and b that begins at (row, col). Writes them to `out`, or to
// `sums` if that is not null; both point to the first row of the tile.
template <class Tile, Order a_order, Order b_order, class T>
TP_DEVICE void multiply_tile(const Factor<T>& a, int64_t row, const Factor<T>& b, int64_t col, int64_t first,
                             int64_t last, T* out, acc_t<T>* sums = nullptr) {
  using A = acc_t<T>;
  extern __shared__ __align__(16) unsigned char pool[];
  FactorLoader<Tile, Tile::rows, Tile::row_pitch, a_order, T> from_a(a, row, first, last);
  FactorLoader<Tile, Tile::cols, Tile::col_pitch, b_order, T> from_b(b, col, first, last);
  A sum[Tile::row_side][Tile::col_side] = {};
  block::for_slabs<Tile>(
      int(ceil_div(last - first, int64_t(Tile::slab))), reinterpret_cast<T*>(pool),
      [&](T* stage) {
        from_a.load(stage);
        from_b.load(stage + Tile::slab * Tile::row_pitch);
      },
      [&](const T* stage) { block::add_slab<Tile>(stage, sum); });
  const int64_t rows = a.sides - row, cols = b.sides - col;
  block::store_sums<Tile>(reinterpret_cast<A*>(pool), sum, [&](int i, int j, const A* values) {
    if (i >= rows || j >= cols) return;
    const int64_t at = i * b.sides + col + j;
    if (sums) {
      block::write_quad(sums + at, values, cols - j, b.sides % 4 == 0);
    } else {
      block::write_quad(out + at, values, cols - j, b.sides % 4 == 0);
    }
  });
}

template <class Tile, Order b_order, class T>
__global__ void __launch_bounds__(Tile::threads, Tile::residents)
    grouped_product(const __grid_constant__ Grouped<T> work) {
  block::wait_for_launch_before();
  const RowTiles<int64_t>& tiles = work.tiles;
  clear_rows_outside(tiles, work.n, work.cols, work.out, int64_t(blockIdx.x) * Tile::threads + threadIdx.x,
                     int64_t(gridDim.x) * Tile::threads);
  const int64_t tile = blockIdx.x / unsigned(work.col_tiles), col = blockIdx.x % unsigned(work.col_tiles) * Tile::cols;
  if (tile >= tiles.count()) return;
  const int64_t segment = tiles.segment_of(tile),
                row = tiles.begins[segment] + (tile - tiles.first_tiles[segment]) * Tile::rows;
  const Factor<T> x{work.x, work.inner, 1, tiles.begins[segment + 1]};
  const Factor<T> weights{work.other + segment * work.inner * work.cols, 1, work.cols, work.cols};
  multiply_tile<Tile, Order::inner, b_order>(x, row, weights, col, 0, work.inner, work.out + row * work.cols);
}

template <class Tile, Order order, class T>
__global__ void __launch_bounds__(Tile::threads, Tile::residents)
    grouped_outer(const __grid_constant__ Grouped<T> work) {
  block::wait_for_launch_before();
  const RowTiles<int64_t>& chunks = work.tiles;
  const int64_t strip = quotient(blockIdx.x, work.col_tiles), chunk = quotient(strip, work.row_tiles);
  if (chunk >= chunks.count()) return;
  const int64_t col = (blockIdx.x - strip * work.col_tiles) * Tile::cols,
                row = (strip - chunk * work.row_tiles) * Tile::rows;
  const int64_t segment = chunks.segment_of(chunk), first_chunk = chunks.first_tiles[segment],
                begin = chunks.begins[segment] + (chunk - first_chunk) * work.height,
                end = min(begin + work.height, chunks.begins[segment + 1]);
  const bool is_only = chunks.first_tiles[segment + 1] == first_chunk + 1;
  const Factor<T> x{work.x, 1, work.inner, work.inner}, gradient{work.other, 1, work.cols, work.cols};
  const int64_t at = row * work.cols, size = work.inner * work.cols;
  multiply_tile<Tile, order, order>(x, row, gradient, col, begin, end, work.out + segment * size + at,
                                    is_only ? nullptr : work.sums + chunk_slot(begin, end, work.height) * size + at);
}

template <class Tile, class T>
void launch(void (*kernel)(Grouped<T>), const Grouped<T>& work, int64_t blocks, Context& context) {
  constexpr int bytes =
      max(Tile::stages * Tile::stage_values * int(sizeof(T)), block::pool_values<Tile>() * int(sizeof(acc_t<T>)));
  require(blocks < int64_t(1) << 31, "grouped_gemm: too many tiles for a launch: ", blocks);
  block::allow_shared_memory(kernel, bytes);
  block::launch_early(kernel, unsigned(blocks), Tile::threads, bytes, context, work);
  check_launch("grouped_gemm");
}

// Vectors of half types are for the tensor cores, so there is only one kernel for what remains.
template <class T>
constexpr Order vectors = sizeof(T) > 2 ? Order::sides : Order::any;

template <class Tile, class T>
void run_product(const Args& args, Grouped<T> work, Context& context) {
  work.col_tiles = ceil_div(args.cols, int64_t(Tile::cols));
  work.tiles = row_tiles<int64_t>(args.offsets, args.segments, args.n, Tile::rows, context);
  const Factor<T> weights{work.other, 1, args.cols, args.cols};
  const bool whole = weights.order() == Order::sides;
  launch<Tile, T>(whole ? grouped_product<Tile, vectors<T>, T> : grouped_product<Tile, Order::any, T>, work,
                  most_tiles(args.segments, args.n, Tile::rows) * work.col_tiles, context);
}

template <class Tile, class T>
void run_outer(const Args& args, Grouped<T> work, Context& context) {
  work.row_tiles = ceil_div(args.inner, int64_t(Tile::rows));
  work.col_tiles = ceil_div(args.cols, int64_t(Tile::cols));
  const int64_t tiles = work.row_tiles * work.col_tiles;
  work.height = chunk_height(args.n, tiles, Tile::residents);
  work.tiles = row_tiles<int64_t>(args.offsets, args.segments, args.n, work.height, context);
  work.sums = context.workspace<acc_t<T>>(chunk_slots(args.n, work.height) * args.inner * args.cols);
  const Factor<T> x{work.x, 1, args.inner, args.inner}, gradient{work.other, 1, args.cols, args.cols};
  const bool whole = x.order() == Order::sides && gradient.order() == Order::sides;
  launch<Tile, T>(whole ? grouped_outer<Tile, vectors<T>, T> : grouped_outer<Tile, Order::any, T>, work,
                  most_tiles(args.segments, args.n, work.height) * tiles, context);
  add_chunks(work.tiles, work.height, work.sums, args.inner * args.cols, work.out, context);
}

}  // namespace

void grouped_gemm(const Args& args, Context& context) {
  if (is_for_hopper(args)) return multiply_on_hopper(args, context);
  dispatch(FloatTypes{}, args.dtype, "segment_matmul", [&](auto type) {
    using T = typename decltype(type)::type;
    using Tile = TileOf<T>;
    Grouped<T> work{};
    work.x = static_cast<const T*>(args.x);
    work.other = static_cast<const T*>(args.other);
    work.out = static_cast<T*>(args.out);
    work.n = args.n, work.inner = args.inner, work.cols = args.cols;
    if (args.outer) return run_outer<Tile>(args, work, context);
    if constexpr (std::is_same_v<Tile, FloatTile>) {
      if (is_for_wide_tiles(args)) return run_product<WideFloatTile>(args, work, context);
    }
    run_product<Tile>(args, work, context);
  });
}

}  // namespace tp::segment_matmul
#endif
