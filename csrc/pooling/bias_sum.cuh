// The gradient of the subsampling layer's biases: the sum of a map's gradients over the batch, taken back through the
// activation. A first kernel sums the terms per block or warp, in an order that depends only on the shape; further
// launches add up its results until one number per map is left. No thread adds up more than 128 numbers in sequence;
// all else is trees.
#pragma once
#include "block/block_sum.cuh"
#include "block/launch.cuh"
#include "pooling/backward.cuh"

namespace tp::pooling {

constexpr int64_t map_chunk = 4096;  // elements of a map that one warp sums
constexpr int column_terms = 16;     // elements of a column that one thread sums

// The terms of the sums: gradients, or sums of gradients.
template <class T>
struct ActivatedGradients {
  using A = acc_t<T>;
  Incoming<T> from;
  TP_DEVICE A operator[](int64_t i) const {
    A g[1];
    from.load(i, g);
    return g[0];
  }
};
template <class Acc>
struct PartialSums {
  using A = Acc;
  const A* from;
  TP_DEVICE A operator[](int64_t i) const { return from[i]; }
};

// out[block of parts, map] = the sum of some parts of one map. A part is a chunk of the map of one sample; each warp
// takes `per_warp` parts.
template <class T>
__global__ void __launch_bounds__(vectorized_threads)
    map_sums_kernel(const ActivatedGradients<T> from, int64_t batch, int64_t maps, int64_t length, int64_t chunks,
                    int per_warp, acc_t<T>* out) {
  using A = acc_t<T>;
  constexpr int loads = 8;  // loads in flight
  block::allow_next_launch();
  const int64_t group = floor_div(int64_t(blockIdx.x), maps), map = blockIdx.x - group * maps;
  const int warp = int(threadIdx.x) / block::warp_size, lane = int(threadIdx.x) % block::warp_size;
  const int64_t first_part = (group * (vectorized_threads / block::warp_size) + warp) * per_warp;
  A sum = 0;
  for (int64_t part = first_part; part < tp::min(first_part + per_warp, batch * chunks); ++part) {
    const int64_t sample = chunks == 1 ? part : floor_div(part, chunks), begin = (part - sample * chunks) * map_chunk;
    const int64_t first = (sample * maps + map) * length + begin;
    const int count = int(tp::min(length - begin, map_chunk));
    for (int begin_k = lane; begin_k < count; begin_k += loads * block::warp_size) {
      A held[loads];
#pragma unroll
      for (int u = 0; u < loads; ++u) {
        const int k = begin_k + u * block::warp_size;
        held[u] = k < count ? from[first + k] : A(0);
      }
#pragma unroll
      for (int u = 0; u < loads; ++u) sum += held[u];
    }
  }
  sum = block::block_sum<vectorized_threads>(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// out[block, column] = the sum over the rows of the block; `width` adjacent threads, a power of two, share its columns.
template <class From, class Out>
__global__ void __launch_bounds__(vectorized_threads)
    column_sums_kernel(const From from, int64_t rows, int64_t columns, int width, Out* out) {
  using A = typename From::A;
  __shared__ A sums[vectorized_threads];
  block::wait_for_launch_before();
  block::allow_next_launch();
  const int side = int(threadIdx.x) % width, height = vectorized_threads / width;
  const int64_t column = int64_t(blockIdx.y) * width + side;
  const int64_t first = int64_t(blockIdx.x) * height * column_terms + threadIdx.x / width;
  A sum = 0;
#pragma unroll
  for (int k = 0; k < column_terms; ++k) {
    const int64_t row = first + int64_t(k) * height;
    if (row < rows && column < columns) sum += from[row * columns + column];
  }
  sums[threadIdx.x] = sum;
  for (int stride = vectorized_threads / 2; stride >= width; stride /= 2) {
    __syncthreads();
    if (int(threadIdx.x) < stride) sums[threadIdx.x] += sums[threadIdx.x + stride];
  }
  if (int(threadIdx.x) < width && column < columns) out[blockIdx.x * columns + column] = Out(sums[threadIdx.x]);
}

// out[column] = sum over rows of from[row, column].
template <class Out, class From>
void sum_columns(const From& from, int64_t rows, int64_t columns, Out* out, bool after_own_launch, Context& context) {
  using A = typename From::A;
  int width = 1;
  while (width < vectorized_threads / 8 && width < columns) width *= 2;
  const int64_t blocks = tp::max(ceil_div(rows, int64_t(vectorized_threads / width) * column_terms), int64_t(1));
  const dim3 grid{unsigned(blocks), unsigned(ceil_div(columns, int64_t(width)))};
  const auto launch = [&](auto kernel, auto* to) {
    if (after_own_launch) {
      block::launch_early(kernel, grid, vectorized_threads, 0, context, from, rows, columns, width, to);
    } else {
      kernel<<<grid, vectorized_threads, 0, cudaStream_t(context.stream)>>>(from, rows, columns, width, to);
    }
    check_launch("subsample2d_backward");
  };
  if (blocks == 1) return launch(column_sums_kernel<From, Out>, out);
  A* partial = context.workspace<A>(blocks * columns);
  launch(column_sums_kernel<From, A>, partial);
  sum_columns(PartialSums<A>{partial}, blocks, columns, out, true, context);
}

// grad_bias[map] = the sum of the map's gradients.
template <class T>
void sum_bias(const Args& a, const Incoming<T>& incoming, Context& context) {
  using A = acc_t<T>;
  T* out = static_cast<T*>(a.grad_bias);
  const ActivatedGradients<T> gradients{incoming};
  if (a.out.inner > 1) return sum_columns(gradients, a.out.size() / a.maps, a.maps, out, false, context);
  const int64_t length = a.out.h * a.out.w, batch = a.out.outer / a.maps;
  if (batch == 0) return sum_columns(gradients, 0, a.maps, out, false, context);
  const int64_t chunks = ceil_div(length, map_chunk), per_warp = length <= map_chunk / 4 ? 2 : 1;
  const int64_t groups = ceil_div(batch * chunks, per_warp * vectorized_threads / block::warp_size);
  A* sums = context.workspace<A>(groups * a.maps);
  map_sums_kernel<T><<<unsigned(groups * a.maps), vectorized_threads, 0, cudaStream_t(context.stream)>>>(
      gradients, batch, a.maps, length, chunks, int(per_warp), sums);
  check_launch("subsample2d_backward");
  sum_columns(PartialSums<A>{sums}, groups, a.maps, out, true, context);
}

}  // namespace tp::pooling
