// The fully connected layer in one launch: a tiled matrix product (§5.4's tiles, §16.4's product), with the bias added
// before the result is rounded and stored. It is for minibatches so small that a library call spends its time on
// launches.
//
// A block computes a tile of 32 x 32 outputs, four per thread, from tiles of both factors in shared memory. While it
// multiplies one pair of tiles, it loads the next pair to registers. The sum of each pair is computed separately and
// then added to the total, so the rounding error grows with inner / 64 rather than with inner.
#include "layers/linear.h"
#ifdef __CUDACC__

namespace tp::linear {
namespace {

constexpr int tile = 32, depth = 64, threads = 256;
constexpr int per_thread = tile * depth / threads;

// One of the factors: `sides` rows of A or columns of B, each with `inner` elements.
template <class T>
struct Factor {
  const T* data;
  int64_t side_stride, inner_stride, sides, inner;
};

// The elements of a factor's tiles that one thread loads; a tile has `tile` sides by `depth` elements. Adjacent threads
// take adjacent elements along the dimension that is contiguous in memory.
template <class T>
class Loader {
 public:
  using A = acc_t<T>;

  TP_DEVICE Loader(const Factor<T>& f, int64_t first_side) {
    const bool along = f.inner_stride == 1;
    const int t = int(threadIdx.x);
    side_ = along ? t / depth : t % tile, side_step_ = along ? threads / depth : 0;
    k_ = along ? t % depth : t / tile, k_step_ = along ? 0 : threads / tile;
    next_ = f.data + (first_side + side_) * f.side_stride + k_ * f.inner_stride;
    step_ = side_step_ * f.side_stride + k_step_ * f.inner_stride;
    tile_step_ = depth * f.inner_stride;
    sides_ = int(tp::min(f.sides - first_side, int64_t(tile)));
  }
  // Loads the next tile, of which `count` elements along the inner dimension exist; the others are 0.
  TP_DEVICE void load(int64_t count) {
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
      const bool exists = side_ + i * side_step_ < sides_ && k_ + i * k_step_ < count;
      held_[i] = exists ? A(next_[i * step_]) : A(0);
    }
    next_ += tile_step_;
  }
  TP_DEVICE void store(A (*shared)[tile + 2]) const {
    A* to = &shared[k_][side_];
#pragma unroll
    for (int i = 0; i < per_thread; ++i) to[i * (k_step_ * (tile + 2) + side_step_)] = held_[i];
  }

 private:
  int side_, k_, side_step_, k_step_, sides_;
  const T* next_;
  int64_t step_, tile_step_;
  A held_[per_thread];
};

template <class T>
__global__ void __launch_bounds__(threads, 2)
    tiled_kernel(const Factor<T> a, const Factor<T> b, const T* bias, T* out, int64_t row_tiles) {
  using A = acc_t<T>;
  __shared__ A left[depth][tile + 2], right[depth][tile + 2];
  const int64_t first_row = blockIdx.x % row_tiles * tile, first_col = blockIdx.x / row_tiles * tile;
  const int x = int(threadIdx.x) % (tile / 2) * 2, y = int(threadIdx.x) / (tile / 2) * 2;
  Loader<T> from_a(a, first_row), from_b(b, first_col);
  A total[2][2] = {};
  from_a.load(a.inner);
  from_b.load(a.inner);
  for (int64_t k = 0; k < a.inner; k += depth) {
    __syncthreads();
    from_a.store(left);
    from_b.store(right);
    __syncthreads();
    from_a.load(a.inner - k - depth);
    from_b.load(a.inner - k - depth);
    A sum[2][2] = {};
#pragma unroll 8
    for (int d = 0; d < depth; ++d) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) sum[i][j] += left[d][y + i] * right[d][x + j];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) total[i][j] += sum[i][j];
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int64_t row = first_row + y + i, col = first_col + x + j;
      if (row >= a.sides || col >= b.sides) continue;
      out[row * b.sides + col] = T(bias ? total[i][j] + A(bias[col]) : total[i][j]);
    }
  }
}

}  // namespace

void tiled(const Args& args, Context& context) {
  const Gemm& p = args.product;
  dispatch(FloatTypes{}, p.dtype, "linear", [&](auto type) {
    using T = typename decltype(type)::type;
    const Factor<T> a{static_cast<const T*>(p.a.data), p.a.row_stride, p.a.col_stride, p.rows, p.inner};
    const Factor<T> b{static_cast<const T*>(p.b.data), p.b.col_stride, p.b.row_stride, p.cols, p.inner};
    const int64_t row_tiles = ceil_div(p.rows, int64_t(tile)), col_tiles = ceil_div(p.cols, int64_t(tile));
    tiled_kernel<T><<<unsigned(row_tiles * col_tiles), threads, 0, cudaStream_t(context.stream)>>>(
        a, b, static_cast<const T*>(args.bias), static_cast<T*>(p.c), row_tiles);
    check_launch("linear");
  });
}

}  // namespace tp::linear
#endif
