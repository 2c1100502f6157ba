// Interleaved rows that are short, or so numerous that one thread for every few rows fills the device. No row is
// divided: each thread walks down `vector` neighbouring columns.
#pragma once
#include "block/load_store.cuh"
#include "block/lookback.cuh"
#include "scan/elements.h"

namespace tp::scan::lookback {

// The number of neighbouring columns per lane.
template <class E>
constexpr int vector_columns = tp::max(sizeof(typename E::Input), sizeof(typename E::Output)) == 8 ? 2 : 4;

// The columns of one thread in memory, `spread` columns apart. If they are neighbours and `aligned`, a line of them is
// one vector access; otherwise the first `left` columns are accessed one by one, and the others do not exist.
template <class T, int vector, int spread = 1>
struct Columns {
  using Vec = block::Vector<typename std::remove_const<T>::type, vector>;
  T* first;
  int64_t pitch;
  bool aligned;
  int left;

  // `by_vectors` says at compile time that the columns exist and are aligned.
  template <bool by_vectors = false>
  TP_DEVICE Vec load(int64_t k) const {
    if constexpr (!by_vectors) {
      if (spread > 1 || !aligned) {
        Vec x;
#pragma unroll
        for (int v = 0; v < vector; ++v) x.v[v] = v < left ? first[k * pitch + v * spread] : T(0);
        return x;
      }
    }
    return *reinterpret_cast<const Vec*>(first + k * pitch);
  }
  template <bool by_vectors = false>
  TP_DEVICE void store(int64_t k, const Vec& x) const {
    if constexpr (!by_vectors) {
      if (spread > 1 || !aligned) {
#pragma unroll
        for (int v = 0; v < vector; ++v) {
          if (v < left) first[k * pitch + v * spread] = x.v[v];
        }
        return;
      }
    }
    block::store_whole(reinterpret_cast<Vec*>(first + k * pitch), x);
  }
};

// The columns of an array of `e` from `column` on, at index `outer` of the outer dimension, in the order of the scan.
template <int vector, int spread = 1, class E, class T>
TP_DEVICE Columns<T, vector, spread> columns_of(const E& e, T* data, int64_t outer, int64_t column) {
  using C = Columns<T, vector, spread>;
  const bool aligned = e.inner % vector == 0 && reinterpret_cast<uintptr_t>(data) % alignof(typename C::Vec) == 0;
  const int64_t left = tp::min(int64_t(vector), ceil_div(tp::max(int64_t(0), e.inner - column), int64_t(spread)));
  return {data + (outer * e.n + (e.reverse ? e.n - 1 : 0)) * e.inner + column, e.reverse ? -e.inner : e.inner, aligned,
          int(left)};
}

constexpr int column_threads = 128;

// Appends one line to the running values of its columns, and returns the results of the line. `unused` says that the
// factors of a recurrence are not used, because nothing precedes the line.
template <class E, int vector, class X, class Factor>
TP_DEVICE __forceinline__ block::Vector<typename E::Output, vector> scan_line(const E& e, const X& x,
                                                                              const Factor& factor, bool unused,
                                                                              typename E::Acc (&running)[vector]) {
  using M = typename E::Monoid;
  using Acc = typename E::Acc;
  using Out = typename E::Output;
  block::Vector<Out, vector> y;
#pragma unroll
  for (int v = 0; v < vector; ++v) {
    if constexpr (M::id == OpId::affine) {
      using A = decltype(Acc::a);
      running[v] = append<M>(running[v], Acc{unused ? A(0) : A(factor.v[v]), A(x.v[v])});
      y.v[v] = Out(running[v].b);
    } else {
      const Acc next = M::combine(running[v], Acc(x.v[v]));
      y.v[v] = Out(e.exclusive ? running[v] : next);
      running[v] = next;
    }
  }
  return y;
}

template <class E>
__global__ __launch_bounds__(column_threads) void columns_kernel(const E e, int64_t across, int64_t all) {
  using M = typename E::Monoid;
  using Acc = typename E::Acc;
  using In = const typename E::Input;
  constexpr bool affine = M::id == OpId::affine;
  constexpr int vector = vector_columns<E>, batch = affine ? 4 : 8;  // rows loaded at once
  const int64_t id = int64_t(blockIdx.x) * column_threads + threadIdx.x;
  if (id >= all) return;
  const int64_t outer = id / across, column = id % across * vector, row = outer * e.inner + column;
  const auto in = columns_of<vector>(e, e.in, outer, column), a = columns_of<vector>(e, e.factors(), outer, column);
  const auto out = columns_of<vector>(e, e.out, outer, column);

  // Initialize the running values.
  Acc running[vector];
#pragma unroll
  for (int v = 0; v < vector; ++v) {
    running[v] = M::identity();
    if constexpr (affine) {
      if (e.initial && v < in.left) running[v] = {0, decltype(Acc::a)(e.initial[row + v])};
    }
  }
  // Walk down the columns, one batch of lines at a time: start all loads of the batch, then scan it.
  for (int64_t k = 0; k < e.n; k += batch) {
    typename Columns<In, vector>::Vec x[batch], factor[affine ? batch : 1];
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      if (k + j >= e.n) break;
      x[j] = in.load(k + j);
      if constexpr (affine) {
        if (k + j > 0 || !e.previous) factor[j] = a.load(k + j);
      }
    }
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      if (k + j >= e.n) break;
      const bool unused = affine && k + j == 0 && !e.initial;
      out.store(k + j, scan_line<E, vector>(e, x[j], factor[affine ? j : 0], unused, running));
    }
  }
}

template <class E>
void scan_columns(const E& e, Context& context) {
  const int64_t across = ceil_div(e.inner, int64_t(vector_columns<E>)), all = e.rows / e.inner * across;
  const int64_t blocks = ceil_div(all, int64_t(column_threads));
  require(blocks <= max_grid, "decoupled_lookback: ", e.rows, " rows are too many for one launch");
  columns_kernel<<<unsigned(blocks), column_threads, 0, cudaStream_t(context.stream)>>>(e, across, all);
  check_launch("decoupled_lookback");
}

}  // namespace tp::scan::lookback
