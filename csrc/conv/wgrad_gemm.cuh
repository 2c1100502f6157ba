// wgrad as one matrix product whose right factor is never stored:
//
//   dw[maps, (tap, channel)] = dy^T[maps, pixels] x x[pixels, (tap, channel)]
//
// Both images are read with the channels of a pixel next to each other. `vector` channels fill 16 bytes, and the
// columns are divided into such vectors. The inner dimension, all pixels of the batch, is long, and the other two are
// short. So it is divided into slices of whole slabs, which different blocks compute; afterwards the sums of the slices
// are added up in order.
//
// Neighbouring columns are the taps of a few channels. What they read overlaps, so a block finds most of it in the L1
// cache.
#pragma once
#include "block/copies.cuh"
#include "block/pipeline.cuh"
#include "block/slices.cuh"
#include "conv/gather_fma.cuh"
#include "conv/relayout.h"
#include "conv/tensor_cores.cuh"

namespace tp::conv {

// The order of the columns: blocks of `together` vectors of channels; within a block, all taps; within a tap, the
// vectors.
struct Columns {
  int64_t taps, vectors, together;

  struct Column {
    int64_t tap, vector;
  };
  TP_HD int64_t count() const { return taps * vectors; }
  TP_HD Column operator[](int64_t i) const {
    int64_t inside = i, block = divide(inside, taps * together), vector = inside, tap = divide(vector, together);
    return {tap, block * together + vector};
  }
};

template <class T>
struct WgradGemm {
  static constexpr int vector = 16 / int(sizeof(T));
  Elements<T> e;
  ChannelsLast<T> x, dy;
  Columns columns;  // of one group, in vectors
  int64_t map_blocks, column_blocks, slabs, slices;
  acc_t<T>* sums;  // [slices][groups][maps][columns]

  TP_HD int64_t sums_per_slice() const { return e.groups * e.maps * columns.count() * vector; }
};

// The position of a sum in dw.
template <class T>
struct FilterIndex {
  WgradGemm<T> work;
  TP_HD int64_t operator()(int64_t i) const {
    constexpr int vector = WgradGemm<T>::vector;
    int64_t column = i, map = divide(column, work.columns.count() * vector), lane = column % vector;
    const auto at = work.columns[column / vector];
    const int64_t channel = at.vector * vector + lane;
    return channel < work.e.channels ? (map * work.e.channels + channel) * work.columns.taps + at.tap : -1;
  }
};

// The share of a block: one tile of dw over one slice.
struct WgradShare {
  int64_t group, map, column, slice, first_slab, last_slab;  // `column` counts vectors
};

template <class T>
TP_DEVICE WgradShare wgrad_share(const WgradGemm<T>& work, int tile_maps, int tile_vectors) {
  int64_t column = blockIdx.x, map = divide(column, work.column_blocks), group = divide(map, work.map_blocks),
          slice = divide(group, work.e.groups);
  return {group,
          map * tile_maps,
          column * tile_vectors,
          slice,
          slice * work.slabs / work.slices,
          (slice + 1) * work.slabs / work.slices};
}

// Copies vectors of one column of x, for the pixels first, first + step, ..., and keeps track of their rows, columns
// and images.
template <class T>
class WindowWalk {
 public:
  TP_DEVICE WindowWalk(const WgradGemm<T>& work, const WgradShare& share, int64_t column, int64_t pixel, int step)
      : work_(work), exists_(column < work.columns.count()) {
    const Elements<T>& e = work.e;
    const auto at = work.columns[exists_ ? column : 0];
    int64_t q = at.tap, p = divide(q, e.cols.kernel), w = pixel, h = divide(w, e.cols.out), n = divide(h, e.rows.out);
    origin_ = work.x.data + share.group * work.x.group + at.vector * WgradGemm<T>::vector;
    top_ = int(p * e.rows.dilation - e.rows.pad);
    left_ = int(q * e.cols.dilation - e.cols.pad);
    h_ = int(h);
    w_ = int(w);
    image_ = n;
    step_w_ = step % int(e.cols.out);
    step_h_ = step / int(e.cols.out) % int(e.rows.out);
    step_n_ = step / int(e.cols.out) / int(e.rows.out);
  }
  // Starts to copy what the column reads for this pixel, and goes on to the next pixel.
  TP_DEVICE void copy(T* to) {
    const Elements<T>& e = work_.e;
    const int i = h_ * int(e.rows.stride) + top_, j = w_ * int(e.cols.stride) + left_;
    const bool inside =
        exists_ && image_ < e.n && unsigned(i) < unsigned(e.rows.in) && unsigned(j) < unsigned(e.cols.in);
    block::copy_or_zero<16>(to, origin_ + image_ * work_.x.image + i * work_.x.row + j * work_.x.col, inside);
    w_ += step_w_;
    h_ += step_h_;
    image_ += step_n_;
    if (w_ >= int(e.cols.out)) {
      w_ -= int(e.cols.out);
      ++h_;
    }
    if (h_ >= int(e.rows.out)) {
      h_ -= int(e.rows.out);
      ++image_;
    }
  }

 private:
  const WgradGemm<T>& work_;
  bool exists_;
  const T* origin_;
  int top_, left_, h_, w_, step_w_, step_h_, step_n_;
  int64_t image_;
};

// Copies slabs of both factors: [slab][maps] of dy, then [slab][columns] of x. Tile::position gives the position of
// vector `v` of row `row`, where a row has `vectors` of them; it is periodic in 8 rows.
template <class T, class Tile>
class WgradLoader {
  static constexpr int vector = WgradGemm<T>::vector, map_vectors = Tile::pixels / vector,
                       column_vectors = Tile::maps / vector;
  static constexpr int map_lines = Tile::threads / map_vectors, lines = Tile::threads / column_vectors;
  static_assert(map_lines * map_vectors == Tile::threads && lines * column_vectors == Tile::threads &&
                    Tile::slab % lines == 0,
                "a thread copies one column of each factor");

 public:
  TP_DEVICE WgradLoader(const WgradGemm<T>& work, const WgradShare& share)
      : dy_col_(work.dy.col),
        walk_(work, share, share.column + int(threadIdx.x) % column_vectors,
              share.first_slab * Tile::slab + int(threadIdx.x) / column_vectors, lines) {
    const int64_t pixel = share.first_slab * Tile::slab + map_line(), map = share.map + map_vector() * vector;
    dy_ = work.dy.data + pixel * dy_col_ + share.group * work.dy.group + map;
    pixels_left_ = map < work.dy.group ? work.e.n * work.e.rows.out * work.e.cols.out - pixel : 0;
  }

  TP_DEVICE void load(T* stage) {
    constexpr int turns = ceil_div(Tile::slab, map_lines);
#pragma unroll
    for (int i = 0; i < turns; ++i) {
      const int row = map_line() + i * map_lines;
      if (Tile::slab % map_lines != 0 && row >= Tile::slab) break;
      block::copy_or_zero<16>(stage + Tile::position(row, map_vector(), map_vectors), dy_ + i * map_lines * dy_col_,
                              i * map_lines < pixels_left_);
    }
    T* const right = stage + Tile::slab * Tile::pixels;
#pragma unroll
    for (int i = 0; i < Tile::slab / lines; ++i) {
      const int row = int(threadIdx.x) / column_vectors + i * lines;
      walk_.copy(right + Tile::position(row, int(threadIdx.x) % column_vectors, column_vectors));
    }
    dy_ += Tile::slab * dy_col_;
    pixels_left_ -= Tile::slab;
  }

 private:
  TP_DEVICE static int map_vector() { return int(threadIdx.x) % map_vectors; }
  TP_DEVICE static int map_line() { return int(threadIdx.x) / map_vectors; }

  const int64_t dy_col_;
  const T* dy_;
  int64_t pixels_left_;  // from the pixel of this thread on
  WindowWalk<T> walk_;
};

// Calls multiply(stage) for every slab of a block's share, while the next slabs are being copied.
template <class T, class Tile, class Multiply>
TP_DEVICE void for_slabs(const WgradGemm<T>& work, const WgradShare& share, T* stages, const Multiply& multiply) {
  WgradLoader<T, Tile> loader(work, share);
  block::for_slabs<Tile>(
      int(share.last_slab - share.first_slab), stages, [&](T* stage) { loader.load(stage); }, multiply);
}

// The first sum of row `map` of a block's tile, or null if there is no such map.
template <class T>
TP_DEVICE acc_t<T>* sums_of(const WgradGemm<T>& work, const WgradShare& share, int map) {
  if (share.map + map >= work.e.maps) return nullptr;
  return work.sums + share.slice * work.sums_per_slice() +
         ((share.group * work.e.maps + share.map + map) * work.columns.count() + share.column) * WgradGemm<T>::vector;
}

// ---- on the CUDA cores

// As FmaTile, but `pixels` are the rows of the tile, which are maps, and `maps` are its columns: 64 for 32 maps.
template <class A, int tile_maps, bool wide = sizeof(A) == 8>
struct WgradFmaTile
    : block::FmaTile<tile_maps, wide || tile_maps == 32 ? 64 : 128, wide || tile_maps == 32 ? 4 : tile_maps / 8,
                     wide || tile_maps == 32 ? 4 : 8, wide ? 8 : 16, 3, (wide || tile_maps > 64) ? 2 : 4, 8> {
  static constexpr int pixels = WgradFmaTile::rows, maps = WgradFmaTile::cols;
  TP_DEVICE static int position(int row, int v, int vectors) { return (row * vectors + v) * (16 / int(sizeof(A))); }
};

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::residents) wgrad_fma(const __grid_constant__ WgradGemm<T> work) {
  extern __shared__ __align__(16) unsigned char pool[];
  __shared__ WgradShare share;
  if (threadIdx.x == 0) share = wgrad_share(work, Tile::pixels, Tile::maps / WgradGemm<T>::vector);
  __syncthreads();
  T sum[Tile::row_side][Tile::col_side] = {};
  for_slabs<T, Tile>(work, share, reinterpret_cast<T*>(pool),
                     [&](const T* stage) { block::add_slab<Tile>(stage, sum); });
  const int columns = int(work.columns.count() - share.column) * WgradGemm<T>::vector;
#pragma unroll
  for (int i = 0; i < Tile::row_side; ++i) {
    T* const row = sums_of(work, share, Tile::row(i / 4) + i % 4);
    if (!row) continue;
#pragma unroll
    for (int j = 0; j < Tile::col_side; ++j) {
      const int column = Tile::col(j / 4) + j % 4;
      if (column < columns) row[column] = sum[i][j];
    }
  }
}

// ---- on the tensor cores: each warp computes 32 x 64 sums

struct WgradMmaTile {
  static constexpr int pixels = 64, maps = 192, slab = 32, stages = 4, threads = 192, residents = 2;
  static constexpr int stage_values = slab * (pixels + maps);
  // The position of a vector of 16 bytes. A row is a multiple of 128 bytes, so vectors are swizzled by the row;
  // otherwise the eight rows that ldmatrix reads at once would conflict on the same banks.
  TP_DEVICE static int position(int row, int v, int vectors) { return (row * vectors + (v ^ (row & 7))) * 8; }
};

template <class T>
TP_DEVICE void multiply_pixels(const T* stage, int warp_map, int warp_column, float (&sum)[2][8][4]) {
  using Tile = WgradMmaTile;
  const int lane = int(threadIdx.x) % 32;
  const T* const right = stage + Tile::slab * Tile::pixels;
#pragma unroll
  for (int k = 0; k < Tile::slab; k += 16) {
    unsigned a[2][4], b[4][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = k + lane / 16 * 8 + lane % 8;
      load_matrices<true>(a[i], stage + Tile::position(row, (warp_map + i * 16) / 8 + lane / 8 % 2, Tile::pixels / 8));
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = k + lane / 8 % 2 * 8 + lane % 8;
      load_matrices<true>(b[j], right + Tile::position(row, (warp_column + j * 16) / 8 + lane / 16, Tile::maps / 8));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) multiply_add<T>(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(WgradMmaTile::threads, WgradMmaTile::residents)
    wgrad_mma(const __grid_constant__ WgradGemm<T> work) {
  using Tile = WgradMmaTile;
  extern __shared__ __align__(16) unsigned char pool[];
  __shared__ WgradShare share;
  if (threadIdx.x == 0) share = wgrad_share(work, Tile::pixels, Tile::maps / 8);
  __syncthreads();
  const int warp = int(threadIdx.x) / 32, warp_map = warp % 2 * 32, warp_column = warp / 2 * 64;
  const int lane = int(threadIdx.x) % 32;
  float sum[2][8][4] = {};
  for_slabs<T, Tile>(work, share, reinterpret_cast<T*>(pool),
                     [&](const T* stage) { multiply_pixels<T>(stage, warp_map, warp_column, sum); });
  const int columns = int(work.columns.count() - share.column) * 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float* const row = sums_of(work, share, warp_map + i / 2 * 16 + i % 2 * 8 + lane / 4);
    if (!row) continue;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int column = warp_column + j * 8 + lane % 4 * 2;
      if (column >= columns) continue;
      *reinterpret_cast<float2*>(row + column) = {sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]};
    }
  }
}

// ---- the host's part

template <class T, class Tile>
WgradGemm<T> wgrad_gemm(const Elements<T>& e, Context& context) {
  constexpr int vector = WgradGemm<T>::vector;
  const ChannelsLast<T> x(e.x, e.x_strides, e.n, e.groups, e.channels, e.rows.in, e.cols.in, context),
      dy(e.y, e.y_strides, e.n, e.groups, e.maps, e.rows.out, e.cols.out, context);
  Columns columns{e.taps(), x.group / vector, min(x.group / vector, int64_t(64 / vector))};
  while (columns.vectors % columns.together != 0) --columns.together;
  WgradGemm<T> work{e,
                    x,
                    dy,
                    columns,
                    ceil_div(e.maps, int64_t(Tile::pixels)),
                    ceil_div(columns.count() * vector, int64_t(Tile::maps)),
                    ceil_div(e.n * e.rows.out * e.cols.out, int64_t(Tile::slab)),
                    1,
                    nullptr};
  constexpr int64_t blocks = 132 * Tile::residents;  // as many as an H200 runs at once
  const int64_t tiles = work.map_blocks * work.column_blocks * e.groups;
  work.slices = max(int64_t(1), min(blocks / tiles, work.slabs / 4));
  work.sums = context.workspace<acc_t<T>>(work.slices * work.sums_per_slice());
  return work;
}

template <class T, class Tile>
void launch_wgrad_gemm(void (*kernel)(WgradGemm<T>), const Elements<T>& e, Context& context) {
  const WgradGemm<T> work = wgrad_gemm<T, Tile>(e, context);
  constexpr int bytes = int(Tile::stages * Tile::stage_values * sizeof(T));
  block::allow_shared_memory(kernel, bytes);
  kernel<<<unsigned(work.map_blocks * work.column_blocks * e.groups * work.slices), Tile::threads, bytes,
           cudaStream_t(context.stream)>>>(work);
  check_launch("implicit_gemm");
  block::sum_slices(work.sums, work.slices, work.sums_per_slice(), e.weight, context, FilterIndex<T>{work});
}

template <class T>
void run_wgrad_fma(const Elements<T>& e, Context& context) {
  if constexpr (sizeof(T) == 4) {
    using Large = WgradFmaTile<T, 128>;
    if (e.maps > 64) return launch_wgrad_gemm<T, Large>(wgrad_fma<T, Large>, e, context);
    using Small = WgradFmaTile<T, 32>;
    if (e.maps <= 32) return launch_wgrad_gemm<T, Small>(wgrad_fma<T, Small>, e, context);
  }
  using Tile = WgradFmaTile<T, 64>;
  launch_wgrad_gemm<T, Tile>(wgrad_fma<T, Tile>, e, context);
}

template <class T>
void run_wgrad_mma(const Elements<T>& e, Context& context) {
  launch_wgrad_gemm<T, WgradMmaTile>(wgrad_mma<T>, e, context);
}

}  // namespace tp::conv
