// The gradients of the subsampling layer. One kernel takes the gradients back through the activation and sums them per
// map, per block; further launches add up the sums of the blocks until one number per map is left, the gradient of its
// bias. The same kernel distributes each gradient over the pixels of its window, if the window is small; otherwise a
// kernel with one thread per pixel does. The order of all additions depends only on the shape. No thread adds up more
// than 16 numbers in sequence; all else is trees.
#pragma once
#include "block/block_sum.cuh"
#include "block/launch.cuh"
#include "pooling/tiles.cuh"

namespace tp::pooling {

constexpr int map_terms = 8;      // elements of a map that one thread takes
constexpr int column_terms = 16;  // elements of a column that one thread takes

// The gradients at the activation's argument; the windows do not overlap and cover the map. With `halves` they have 2 x
// 2 pixels, and so do, with inner = 1, the vectors by which grad_x is written: its rows begin at even elements.
template <class T, class I, bool halves>
struct WindowGradients {
  using A = acc_t<T>;
  const T *grad, *y;
  T* grad_x;
  Activation activation;
  I inner, window_h, window_w;
  Divisor<I> columns;  // of the output
  A share;             // 1 / (the pixels of a window)
  bool distributes;    // else distribute() does nothing

  // The gradient of channel c of output o, whose map has the number o / (its rows x columns).
  TP_DEVICE A load(I o, I c) const {
    const I at = o * inner + c;
    return activate_backward(activation, A(grad[at]), A(y[at]));
  }
  TP_DEVICE T each(A value) const { return T(A(0) + value * share); }
  TP_DEVICE void distribute(I o, I c, A value) const {
    if (!distributes) return;
    const T x = each(value);
    I row = o;
    const I column = columns.take(row), h = halves ? 2 : window_h, w = halves ? 2 : window_w, width = I(columns.d) * w;
    T* to = grad_x + (row * h * width + column * w) * inner + c;
    if (halves && inner == 1) {
      for (int i = 0; i < 2; ++i) store_vector<T, 2>(to + i * width, {{x, x}});
      return;
    }
    for (I i = 0; i < h; ++i) {
      for (I j = 0; j < w; ++j) to[(i * width + j) * inner] = x;
    }
  }
};

// One thread per pixel of grad_x. A row of pixels has `width` of them, of `inner` channels each.
template <class From, class I>
__global__ void __launch_bounds__(vectorized_threads)
    window_pixels_kernel(const From from, I size, Divisor<I> inner, Divisor<I> width, Divisor<I> window_h,
                         Divisor<I> window_w) {
  const I at = I(blockIdx.x) * vectorized_threads + I(threadIdx.x);
  if (at >= size) return;
  I row = at;
  const I c = inner.take(row), column = width.take(row);
  const I o = window_h.quotient(row) * I(from.columns.d) + window_w.quotient(column);
  from.grad_x[at] = from.each(from.load(o, c));
}

// Sums that an earlier launch left.
template <class Acc>
struct PartialSums {
  using A = Acc;
  const A* from;
  int64_t columns;
  TP_DEVICE A load(int64_t row, int64_t column) const { return from[row * columns + column]; }
  TP_DEVICE void distribute(int64_t, int64_t, A) const {}
};

// out[group, map] = the sum of a group of the map's elements, which are numbered through all samples.
template <class From, class I>
__global__ void __launch_bounds__(vectorized_threads)
    map_sums_kernel(const From from, I batch, I maps, Divisor<I> length, typename From::A* out) {
  using A = typename From::A;
  block::allow_next_launch();
  const I group = I(blockIdx.x) / maps, map = I(blockIdx.x) - group * maps, elements = I(length.d);
  const I first = group * (map_terms * vectorized_threads) + I(threadIdx.x);
  A held[map_terms];
  I offset[map_terms];
#pragma unroll
  for (int u = 0; u < map_terms; ++u) {
    I sample = first + u * vectorized_threads;
    const I element = length.take(sample);
    offset[u] = sample < batch ? (sample * maps + map) * elements + element : I(-1);
    held[u] = offset[u] >= 0 ? from.load(offset[u], 0) : A(0);
  }
  A sum = 0;
#pragma unroll
  for (int u = 0; u < map_terms; ++u) {
    if (offset[u] >= 0) from.distribute(offset[u], 0, held[u]);
    sum += held[u];
  }
  sum = block::block_sum<vectorized_threads>(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// out[group, column] = the sum over the rows of the group. A block takes a group of rows of `width` columns, a power of
// two, which adjacent threads share.
template <class From, class Out, class I>
__global__ void __launch_bounds__(vectorized_threads)
    column_sums_kernel(const From from, I rows, I columns, int width, Out* out) {
  using A = typename From::A;
  __shared__ A sums[vectorized_threads];
  block::wait_for_launch_before();
  block::allow_next_launch();
  const int side = int(threadIdx.x) % width, height = vectorized_threads / width;
  const I strips = (columns + width - 1) / width, group = I(blockIdx.x) / strips;
  const I column = (I(blockIdx.x) - group * strips) * width + side;
  const I first = group * height * column_terms + I(threadIdx.x) / width;
  A held[column_terms];
#pragma unroll
  for (int k = 0; k < column_terms; ++k) {
    const I row = first + k * height;
    held[k] = row < rows && column < columns ? from.load(row, column) : A(0);
  }
  A sum = 0;
#pragma unroll
  for (int k = 0; k < column_terms; ++k) {
    const I row = first + k * height;
    if (row < rows && column < columns) from.distribute(row, column, held[k]);
    sum += held[k];
  }
  sums[threadIdx.x] = sum;
  for (int stride = vectorized_threads / 2; stride >= width; stride /= 2) {
    __syncthreads();
    if (int(threadIdx.x) < stride) sums[threadIdx.x] += sums[threadIdx.x + stride];
  }
  if (int(threadIdx.x) < width && column < columns) out[group * columns + column] = Out(sums[threadIdx.x]);
}

// out[column] = sum over rows of from[row, column].
template <class I, class Out, class From>
void sum_columns(const From& from, int64_t rows, int64_t columns, Out* out, bool after_own_launch, Context& context) {
  using A = typename From::A;
  int width = 1;
  while (width < vectorized_threads / 8 && width < columns) width *= 2;
  const int64_t groups = tp::max(ceil_div(rows, int64_t(vectorized_threads / width) * column_terms), int64_t(1));
  const dim3 grid(unsigned(groups * ceil_div(columns, int64_t(width))));
  const auto launch = [&](auto kernel, auto* to) {
    if (after_own_launch) {
      block::launch_early(kernel, grid, vectorized_threads, 0, context, from, I(rows), I(columns), width, to);
    } else {
      kernel<<<grid, vectorized_threads, 0, cudaStream_t(context.stream)>>>(from, I(rows), I(columns), width, to);
    }
    check_launch("subsample2d_backward");
  };
  if (groups == 1) return launch(column_sums_kernel<From, Out, I>, out);
  A* partial = context.workspace<A>(groups * columns);
  launch(column_sums_kernel<From, A, I>, partial);
  sum_columns<int64_t>(PartialSums<A>{partial, columns}, groups, columns, out, true, context);
}

// Writes grad_x, and grad_bias[map] = the sum of the map's gradients. All offsets have type I.
template <class T, class I, bool halves>
void subsample_backward(const Args& a, Context& context) {
  using A = acc_t<T>;
  T* out = static_cast<T*>(a.grad_bias);
  if (a.out.size() == 0) return sum_columns<I>(PartialSums<A>{}, 0, a.maps, out, false, context);
  // Adjacent threads write adjacent elements: pairs of a row, or channels.
  const bool distributes = a.in.inner == 1 ? halves : a.h.kernel * a.w.kernel <= 16;
  const WindowGradients<T, I, halves> from{static_cast<const T*>(a.grad),
                                           static_cast<const T*>(a.y),
                                           static_cast<T*>(a.grad_x),
                                           a.activation,
                                           I(a.in.inner),
                                           I(a.h.kernel),
                                           I(a.w.kernel),
                                           Divisor<I>(a.out.w),
                                           A(1) / (A(a.h.kernel) * A(a.w.kernel)),
                                           distributes};
  if (!distributes) {
    const unsigned blocks = unsigned(ceil_div(a.in.size(), int64_t(vectorized_threads)));
    window_pixels_kernel<<<blocks, vectorized_threads, 0, cudaStream_t(context.stream)>>>(
        from, I(a.in.size()), Divisor<I>(a.in.inner), Divisor<I>(a.in.w), Divisor<I>(a.h.kernel),
        Divisor<I>(a.w.kernel));
    check_launch("subsample2d_backward");
  }
  if (a.out.inner > 1) return sum_columns<I>(from, a.out.size() / a.maps, a.maps, out, false, context);
  const int64_t length = a.out.h * a.out.w, batch = a.out.outer / a.maps;
  const int64_t groups = ceil_div(batch * length, int64_t(map_terms) * vectorized_threads);
  A* sums = context.workspace<A>(groups * a.maps);
  map_sums_kernel<<<unsigned(groups * a.maps), vectorized_threads, 0, cudaStream_t(context.stream)>>>(
      from, I(batch), I(a.maps), Divisor<I>(length), sums);
  check_launch("subsample2d_backward");
  sum_columns<int64_t>(PartialSums<A>{sums, a.maps}, groups, a.maps, out, true, context);
}

}  // namespace tp::pooling
