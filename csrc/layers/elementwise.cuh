// Elementwise functions, and sums of them, at the speed of memory: a thread holds several vectors of 16 bytes.
//
// The elements of a thread and the order of summation depend only on the number of elements. Arrays that are not
// aligned to 16 bytes are read and written element by element, and give the same bits.
#pragma once
#include "block/block_sum.cuh"
#include "block/launch.cuh"
#include "block/load_store.cuh"
#include "core/dtype.h"

namespace tp::layers {

constexpr int elementwise_threads = 256;

template <class T>
constexpr int vector_width = 16 / int(sizeof(T));

// Arrays of n elements each that are read together.
template <class T, int inputs>
struct Streams {
  static constexpr int width = vector_width<T>;
  using Array = block::Vectors<const T, width>;
  using Vector = block::Vector<T, width>;
  Array in[inputs];
  int64_t n;

  // Tells whether the vectors of all arrays up to position `end` can be loaded as vectors.
  TP_DEVICE bool whole(int64_t end) const {
    bool aligned = end <= n;
#pragma unroll
    for (int i = 0; i < inputs; ++i) aligned = aligned && in[i].aligned;
    return aligned;
  }
  // Loads the vectors of all arrays at position p; elements past the end are 0.
  template <bool is_whole>
  TP_DEVICE void load(int64_t p, Vector (&x)[inputs]) const {
#pragma unroll
    for (int i = 0; i < inputs; ++i) {
      if constexpr (is_whole) {
        x[i] = in[i].at(p);
      } else {
        x[i] = in[i].load(p, T(0));
      }
    }
  }
};

template <class T, class... Pointers>
Streams<T, int(sizeof...(Pointers))> streams(int64_t n, const Pointers*... in) {
  using S = Streams<T, int(sizeof...(Pointers))>;
  return S{{typename S::Array(in, n, false)...}, n};
}

// value(x) computes the function of one element of each array, x[0] to x[inputs - 1], in the accumulator's type.
template <class T, int inputs, class Value>
TP_DEVICE acc_t<T> apply(const Value& value, const block::Vector<T, vector_width<T>> (&x)[inputs], int v) {
  acc_t<T> element[inputs];
#pragma unroll
  for (int i = 0; i < inputs; ++i) element[i] = acc_t<T>(x[i].v[v]);
  return value(element);
}

// Each block takes a tile of `map_vectors` vectors per thread.
constexpr int map_vectors(int inputs) { return inputs == 1 ? 4 : 2; }

template <class T, int inputs>
constexpr int64_t map_tile = int64_t(elementwise_threads) * vector_width<T> * map_vectors(inputs);

template <bool whole, class T, int inputs, class Value>
TP_DEVICE void map_vectors_from(int64_t first, const Streams<T, inputs>& x,
                                const block::Vectors<T, vector_width<T>>& out, const Value& value) {
  using S = Streams<T, inputs>;
  constexpr int vectors = map_vectors(inputs), step = elementwise_threads * S::width;
  typename S::Vector held[vectors][inputs];
#pragma unroll
  for (int k = 0; k < vectors; ++k) x.template load<whole>(first + k * step, held[k]);
#pragma unroll
  for (int k = 0; k < vectors; ++k) {
    typename S::Vector y;
#pragma unroll
    for (int v = 0; v < S::width; ++v) y.v[v] = T(apply<T, inputs>(value, held[k], v));
    if constexpr (whole) {
      out.at(first + k * step) = y;
    } else {
      out.store(first + k * step, y);
    }
  }
}

// out[i] = f(x[i]). f.bind() reads, on the device, the operands that are the same for all elements, and returns the
// function.
template <class T, int inputs, class F>
__global__ void __launch_bounds__(elementwise_threads)
    map_kernel(const Streams<T, inputs> x, const block::Vectors<T, vector_width<T>> out, const F f) {
  const auto value = f.bind();
  const int64_t tile = blockIdx.x * map_tile<T, inputs>, first = tile + threadIdx.x * vector_width<T>;
  if (x.whole(tile + map_tile<T, inputs>) && out.aligned) {
    map_vectors_from<true>(first, x, out, value);
  } else {
    map_vectors_from<false>(first, x, out, value);
  }
}

template <class T, int inputs, class F>
void map(const char* name, const Streams<T, inputs>& x, T* out, const F& f, Context& context) {
  if (x.n == 0) return;
  const unsigned blocks(ceil_div(x.n, map_tile<T, inputs>));
  map_kernel<T, inputs, F><<<blocks, elementwise_threads, 0, cudaStream_t(context.stream)>>>(x, {out, x.n, false}, f);
  check_launch(name);
}

// Sums: one block sums each tile, and the sums of the blocks are summed in the same way until one is left. A thread
// adds 8 elements in sequence and the rest is a tree, so the rounding error grows with the logarithm of n.
constexpr int sum_vectors = 8;

template <class T>
constexpr int64_t sum_tile = int64_t(elementwise_threads) * vector_width<T> * sum_vectors;

template <bool whole, class T, int inputs, class Value>
TP_DEVICE acc_t<T> sum_vectors_from(int64_t first, const Streams<T, inputs>& x, const Value& value) {
  using S = Streams<T, inputs>;
  acc_t<T> sums[S::width] = {};
#pragma unroll(8 / inputs)
  for (int k = 0; k < sum_vectors; ++k) {
    const int64_t p = first + k * elementwise_threads * S::width;
    typename S::Vector held[inputs];
    x.template load<whole>(p, held);
#pragma unroll
    for (int v = 0; v < S::width; ++v) {
      if (whole || p + v < x.n) sums[v] += apply<T, inputs>(value, held, v);
    }
  }
#pragma unroll
  for (int half = S::width / 2; half > 0; half /= 2) {
#pragma unroll
    for (int v = 0; v < half; ++v) sums[v] += sums[v + half];
  }
  return sums[0];
}

// out[block] = the sum of f over the tile of the block, divided by `divisor`.
template <class T, int inputs, class F, class Out>
__global__ void __launch_bounds__(elementwise_threads)
    sum_kernel(const Streams<T, inputs> x, const F f, Out* out, acc_t<T> divisor) {
  block::wait_for_launch_before();
  block::allow_next_launch();
  const auto value = f.bind();
  const int64_t tile = blockIdx.x * sum_tile<T>, first = tile + threadIdx.x * vector_width<T>;
  const acc_t<T> own =
      x.whole(tile + sum_tile<T>) ? sum_vectors_from<true>(first, x, value) : sum_vectors_from<false>(first, x, value);
  const acc_t<T> sum = block::block_sum<elementwise_threads>(own);
  if (threadIdx.x == 0) out[blockIdx.x] = Out(sum / divisor);
}

struct Identity {
  TP_DEVICE Identity bind() const { return *this; }
  template <class A>
  TP_DEVICE A operator()(const A (&x)[1]) const {
    return x[0];
  }
};

// *out = (f(x[0]) + ... + f(x[n - 1])) / divisor.
template <class Out, class T, int inputs, class F>
void sum(const char* name, const Streams<T, inputs>& x, const F& f, Out* out, acc_t<T> divisor, Context& context,
         bool after_own_launch = false) {
  using A = acc_t<T>;
  const int64_t tiles = tp::max(ceil_div(x.n, sum_tile<T>), int64_t(1));
  const auto launch = [&](auto kernel, auto* to, A by) {
    if (after_own_launch) {
      block::launch_early(kernel, dim3(unsigned(tiles)), elementwise_threads, 0, context, x, f, to, by);
    } else {
      kernel<<<unsigned(tiles), elementwise_threads, 0, cudaStream_t(context.stream)>>>(x, f, to, by);
    }
    check_launch(name);
  };
  if (tiles == 1) return launch(sum_kernel<T, inputs, F, Out>, out, divisor);
  A* partial = context.workspace<A>(tiles);
  launch(sum_kernel<T, inputs, F, A>, partial, A(1));
  sum(name, streams<A>(tiles, partial), Identity{}, out, divisor, context, true);
}

}  // namespace tp::layers
