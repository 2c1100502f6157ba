// Pooling: each thread computes one output pixel, 2 x 2 neighbours or, channels last, a vector of channels of one
// pixel.
#pragma once
#include "pooling/tiles.cuh"

namespace tp::pooling {

// Tells whether `a` replaces `b`: it is greater, or it is the first NaN. Of equal values the earlier stays.
template <class A>
TP_DEVICE bool replaces(A a, A b) {
  return !(a <= b) & (b == b);
}

// The greatest values so far of some channels, and the indices of their pixels.
template <int width, class A, class I>
struct Greatest {
  A value[width];
  I pixel[width];

  // `first` is the index of the maximum if all values are -inf.
  TP_DEVICE void clear(I first) {
#pragma unroll
    for (int v = 0; v < width; ++v) value[v] = detail::lowest<A>(), pixel[v] = first;
  }
  template <class T>
  TP_DEVICE void take(I at, const block::Vector<T, width>& tap, bool exists) {
#pragma unroll
    for (int v = 0; v < width; ++v) {
      const bool greater = exists & replaces(A(tap.v[v]), value[v]);
      value[v] = greater ? A(tap.v[v]) : value[v];
      pixel[v] = greater ? at : pixel[v];
    }
  }
  TP_DEVICE void take(const Greatest& later, bool exists) {
#pragma unroll
    for (int v = 0; v < width; ++v) {
      const bool greater = exists & replaces(later.value[v], value[v]);
      value[v] = greater ? later.value[v] : value[v];
      pixel[v] = greater ? later.pixel[v] : pixel[v];
    }
  }
  template <class T, class Index>
  TP_DEVICE void store(T* y, Index* indices) const {
    constexpr int pack = indices_at_once<Index, width>;
    block::Vector<T, width> result;
#pragma unroll
    for (int v = 0; v < width; ++v) result.v[v] = T(value[v]);
    store_vector<T, width>(y, result);
#pragma unroll
    for (int v = 0; v < width; v += pack) {
      block::Vector<Index, pack> packed;
#pragma unroll
      for (int k = 0; k < pack; ++k) packed.v[k] = Index(pixel[v + k]);
      store_vector<Index, pack>(indices + v, packed);
    }
  }
};

// The number of adjacent outputs along an axis per thread: windows of constant size share loads and, if they overlap,
// the maxima of their rows.
template <int width, class Axis>
constexpr int outputs_along = width == 1 && Axis::constant_kernel > 0 ? 2 : 1;

// Stores the results of two neighbouring outputs, which are `step` elements apart. With `paired`, they are next to each
// other and begin at a multiple of two.
template <class Found, class T, class Index>
TP_DEVICE void store_pair(const Found (&found)[2], bool paired, bool both, int64_t step, T* y, Index* indices) {
  if (paired) {
    store_vector<T, 2>(y, {{T(found[0].value[0]), T(found[1].value[0])}});
    store_vector<Index, 2>(indices, {{Index(found[0].pixel[0]), Index(found[1].pixel[0])}});
  } else {
    found[0].store(y, indices);
    if (both) found[1].store(y + step, indices + step);
  }
}

// Computes 2 x 2 neighbouring outputs, if the array has no vectors of channels.
template <class T, class Index, class I, class H, class W>
TP_DEVICE void maximum_of_four(const Grid<I, H, W>& g, const T* map, I n, I oh, I ow, I c, bool quads, T* y,
                               Index* indices) {
  const I h0 = begin_of(g.h, oh), w0 = begin_of(g.w, ow);
  const Taps<2, 2, 1, T, I, H, W> taps(g, map, h0, w0, quads);
  using Found = Greatest<1, acc_t<T>, I>;
  Found of_row[taps.rows][2];
#pragma unroll
  for (int i = 0; i < taps.rows; ++i) {
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      of_row[i][q].clear(taps.row[i] + first_tap(g.w, w0 + q * W::stride));
#pragma unroll
      for (int k = 0; k < W::constant_kernel; ++k) {
        const int j = q * W::stride + k;
        of_row[i][q].take(taps.row[i] + taps.column[j], taps.values[i][j], taps.column_exists[j]);
      }
    }
  }
#pragma unroll
  for (int p = 0; p < 2; ++p) {
    if (oh + p >= g.h.outputs) return;
    Found found[2];
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      found[q].clear(first_tap(g.h, begin_of(g.h, oh + p)) * g.w.size + first_tap(g.w, w0 + q * W::stride));
#pragma unroll
      for (int i = 0; i < H::constant_kernel; ++i) {
        found[q].take(of_row[p * H::stride + i][q], taps.row_exists[p * H::stride + i]);
      }
    }
    const I o = g.out_offset(n, oh + p, ow, c);
    const bool both = ow + 1 < g.w.outputs;
    store_pair(found, quads && both && o % 2 == 0, both, g.inner, y + o, indices + o);
  }
}

template <int width, class T, class Index, class I, class H, class W>
__global__ void __launch_bounds__(vectorized_threads)
    maximum_kernel(const Grid<I, H, W> g, const Pixels<I> pixels, const T* x, T* y, Index* indices, bool quads) {
  const auto at = pixels.mine();
  if (!at.exists) return;
  const I c = at.inner * width, oh = at.row * outputs_along<width, H>, ow = at.column * outputs_along<width, W>;
  const T* map = x + g.in_offset(at.n, 0, 0, c);
  if constexpr (H::constant_kernel > 0 && width == 1) {
    maximum_of_four(g, map, at.n, oh, ow, c, quads, y, indices);
  } else {
    const I h0 = begin_of(g.h, oh), w0 = begin_of(g.w, ow);
    Greatest<width, acc_t<T>, I> found;
    found.clear(first_tap(g.h, h0) * g.w.size + first_tap(g.w, w0));
    if constexpr (H::constant_kernel > 0) {
      const Taps<1, 1, width, T, I, H, W> taps(g, map, h0, w0);
#pragma unroll
      for (int k = 0; k < H::constant_kernel * W::constant_kernel; ++k) {
        const int i = k / W::constant_kernel, j = k % W::constant_kernel;
        found.take(taps.row[i] + taps.column[j], taps.values[i][j], taps.row_exists[i] && taps.column_exists[j]);
      }
    } else {
      for_taps<width>(g, map, h0, w0, [&](I pixel, const auto& tap) { found.take(pixel, tap, true); });
    }
    const I o = g.out_offset(at.n, oh, ow, c);
    found.store(y + o, indices + o);
  }
}

// The subsampling layer's bias and activation; average pooling has neither.
template <class T, class I>
struct Neuron {
  const T* bias;
  Activation activation;
  int64_t maps, first;  // outer map 0 of the launch is map `first` of the batch
  Divisor<I> by_maps;

  TP_DEVICE acc_t<T> bias_of(I n) const {
    const int64_t map = first + by_maps.take(n);
    return acc_t<T>(bias[map < maps ? map : map - maps]);
  }
};

// The result of an output: what is left to do with the sums of its window.
template <int width, class T, class I, class H, class W>
TP_DEVICE block::Vector<T, width> mean_of(const Grid<I, H, W>& g, const Neuron<T, I>& neuron, I n, I oh, I ow, I c,
                                          const acc_t<T> (&sum)[width]) {
  using A = acc_t<T>;
  const A count = A(counted_by(g.h, oh, g.count_include_pad)) * A(counted_by(g.w, ow, g.count_include_pad));
  block::Vector<T, width> result;
#pragma unroll
  for (int v = 0; v < width; ++v) {
    A mean = sum[v] / count;
    if (neuron.bias) mean += g.inner == 1 ? neuron.bias_of(n) : A(neuron.bias[c + v]);
    result.v[v] = T(activate(neuron.activation, mean));
  }
  return result;
}

// Computes height x across neighbouring outputs; windows have a constant size. With `quads`, there are two across, and
// they are stored together if both exist and begin at a multiple of two.
template <int height, int across, int width, class T, class I, class H, class W>
TP_DEVICE void averages_of(const Grid<I, H, W>& g, const Neuron<T, I>& neuron, const T* map, I n, I oh, I ow, I c,
                           bool quads, T* y) {
  const Taps<height, across, width, T, I, H, W> taps(g, map, begin_of(g.h, oh), begin_of(g.w, ow), quads);
#pragma unroll
  for (int p = 0; p < height; ++p) {
    if (oh + p >= g.h.outputs) return;
    block::Vector<T, width> mean[across];
#pragma unroll
    for (int q = 0; q < across; ++q) {
      acc_t<T> sum[width] = {};
#pragma unroll
      for (int k = 0; k < H::constant_kernel * W::constant_kernel; ++k) {
        const int i = p * H::stride + k / W::constant_kernel, j = q * W::stride + k % W::constant_kernel;
        const bool exists = taps.row_exists[i] && taps.column_exists[j];
#pragma unroll
        for (int v = 0; v < width; ++v) sum[v] += exists ? acc_t<T>(taps.values[i][j].v[v]) : acc_t<T>(0);
      }
      mean[q] = mean_of(g, neuron, n, oh + p, ow + q, c, sum);
    }
    const I o = g.out_offset(n, oh + p, ow, c);
    if constexpr (across == 2) {
      const bool both = ow + 1 < g.w.outputs;
      if (quads && both && o % 2 == 0) {
        store_vector<T, 2>(y + o, {{mean[0].v[0], mean[1].v[0]}});
        continue;
      }
      if (both) store_vector<T, width>(y + o + g.inner, mean[1]);
    }
    store_vector<T, width>(y + o, mean[0]);
  }
}

template <int width, class T, class I, class H, class W>
__global__ void __launch_bounds__(vectorized_threads)
    average_kernel(const Grid<I, H, W> g, const Pixels<I> pixels, const T* x, T* y, const Neuron<T, I> neuron,
                   bool quads) {
  constexpr int height = outputs_along<width, H>, across = outputs_along<width, W>;
  const auto at = pixels.mine();
  if (!at.exists) return;
  const I c = at.inner * width, oh = at.row * height, ow = at.column * across;
  const T* map = x + g.in_offset(at.n, 0, 0, c);
  if constexpr (H::constant_kernel > 0) {
    averages_of<height, across, width>(g, neuron, map, at.n, oh, ow, c, quads, y);
  } else {
    acc_t<T> sum[width] = {};
    for_taps<width>(g, map, begin_of(g.h, oh), begin_of(g.w, ow), [&](I, const block::Vector<T, width>& tap) {
#pragma unroll
      for (int v = 0; v < width; ++v) sum[v] += acc_t<T>(tap.v[v]);
    });
    store_vector<T, width>(y + g.out_offset(at.n, oh, ow, c), mean_of(g, neuron, at.n, oh, ow, c, sum));
  }
}

// Average pooling of 2 x 2 pixels, without padding or a remainder: rows of all maps follow each other, so a thread
// finds its four columns of two rows by one division. `pairs` counts the pairs of rows of a map.
template <class T, class I>
__global__ void __launch_bounds__(vectorized_threads)
    halves_kernel(I count, const Divisor<I> quads, const Divisor<I> pairs, const T* x, T* y,
                  const Neuron<T, I> neuron) {
  using A = acc_t<T>;
  const I i = I(blockIdx.x) * vectorized_threads + I(threadIdx.x);
  if (i >= count) return;
  I pair = i;
  const I quad = quads.take(pair), row = 4 * I(quads.d);
  const A bias = neuron.bias ? neuron.bias_of(pairs.quotient(pair)) : A(0);
  const auto top = load_vector<T, 4>(x + pair * 2 * row + quad * 4);
  const auto bottom = load_vector<T, 4>(x + pair * 2 * row + row + quad * 4);
  block::Vector<T, 2> result;
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    A mean = (A(0) + A(top.v[2 * q]) + A(top.v[2 * q + 1]) + A(bottom.v[2 * q]) + A(bottom.v[2 * q + 1])) / 4;
    if (neuron.bias) mean += bias;
    result.v[q] = T(activate(neuron.activation, mean));
  }
  store_vector<T, 2>(y + 2 * i, result);
}

// y = x at the window's index, or 0 if the index lies outside its window.
template <class T, class Index, class I, class H, class W>
__global__ void __launch_bounds__(vectorized_threads)
    tangent_kernel(const Grid<I, H, W> g, const Pixels<I> pixels, const T* x, T* y, const Index* indices) {
  const auto at = pixels.mine();
  if (!at.exists) return;
  const I o = g.out_offset(at.n, at.row, at.column, at.inner);
  const int64_t taken = indices[o];
  T value(0);
  if (taken >= 0 && taken < int64_t(g.h.size) * g.w.size) {
    const I ih = I(taken) / g.w.size, iw = I(taken) - ih * g.w.size;
    const I dh = ih - begin_of(g.h, at.row), dw = iw - begin_of(g.w, at.column);
    if (dh >= 0 && dh < g.h.reach && dw >= 0 && dw < g.w.reach) value = x[g.in_offset(at.n, ih, iw, at.inner)];
  }
  y[o] = value;
}

}  // namespace tp::pooling
