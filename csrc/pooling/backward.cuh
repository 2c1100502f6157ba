// The gradients of pooling. Each thread takes either a patch of input pixels, which share most of their windows, or a
// vector of channels of one pixel, and gathers from the windows that cover them.
#pragma once
#include "pooling/tiles.cuh"

namespace tp::pooling {

// A thread's pixels: `height` rows of `width` adjacent pixels of one map, or (if `across`) `width` channels of one
// pixel. Windows of constant kernel overlap so much that two rows of pixels need only a few more windows than one row.
template <bool across, class H>
constexpr int patch_height = !across && H::constant_kernel > 0 ? 2 : 1;

// Tells whether a thread loads all windows before it uses any (for_windows): it does if every window is needed, or if
// loads are small.
template <bool across, class H>
constexpr bool load_ahead = H::constant_kernel > 0 && (!across || H::never_overlaps);

// Stores a thread's sums. The rows of a map begin at multiples of `unit` elements, which is 4, 2 or 1.
template <bool across, int width, int height, class T, class I, class H, class W>
TP_DEVICE void store_patch(const Grid<I, H, W>& g, T* grad_x, I n, I h, I w, I c, int unit,
                           const acc_t<T> (&sum)[height][width]) {
#pragma unroll
  for (int r = 0; r < height; ++r) {
    if (h + r >= g.h.size) return;
    T* to = grad_x + g.in_offset(n, h + r, w, c);
    block::Vector<T, width> result;
#pragma unroll
    for (int v = 0; v < width; ++v) result.v[v] = T(sum[r][v]);
    if constexpr (across || width == 1) {
      store_vector<T, width>(to, result);
    } else if (unit == 4) {
      store_vector<T, width>(to, result);
    } else {
#pragma unroll
      for (int v = 0; v < width; v += 2) {
        if (unit == 2 && w + v < g.w.size) store_vector<T, 2>(to + v, {{result.v[v], result.v[v + 1]}});
        if (unit == 1 && w + v < g.w.size) to[v] = result.v[v];
        if (unit == 1 && w + v + 1 < g.w.size) to[v + 1] = result.v[v + 1];
      }
    }
  }
}

template <class T, class Index, int width>
struct Taken {
  static constexpr int pack = indices_at_once<Index, width>;
  block::Vector<Index, pack> index[width / pack];
  block::Vector<T, width> grad;
};

template <bool across, int width, class T, class Index, class I, class H, class W>
__global__ void __launch_bounds__(vectorized_threads)
    maximum_backward_kernel(const Grid<I, H, W> g, const Pixels<I> pixels, const T* grad, const Index* indices,
                            T* grad_x, int unit) {
  using A = acc_t<T>;
  constexpr int height = patch_height<across, H>, channels = across ? width : 1;
  const auto at = pixels.mine();
  if (!at.exists) return;
  const I c = at.inner * channels, h = at.row * height, w = across ? at.column : at.column * width;
  const int64_t pixel = int64_t(h) * g.w.size + w;
  A sum[height][width] = {};
  using Held = Taken<T, Index, channels>;
  const auto load = [&](I o) {
    Held held;
    held.grad = load_vector<T, channels>(grad + o);
#pragma unroll
    for (int v = 0; v < channels; v += Held::pack) {
      held.index[v / Held::pack] = load_vector<Index, Held::pack>(indices + o + v);
    }
    return held;
  };
  for_windows<load_ahead<across, H>, height, across ? 1 : width>(
      g, at.n, h, w, c, load, [&](I oh, I ow, const Held& held) {
        if constexpr (across) {
#pragma unroll
          for (int v = 0; v < width; ++v) {
            const int64_t taken = held.index[v / Held::pack].v[v % Held::pack];
            sum[0][v] += taken == pixel ? A(held.grad.v[v]) : A(0);
          }
        } else {
          // The index counts if it is that of a pixel in this window. Distances are from the patch's first pixel: to
          // the pixel of the index, and to the window's first row and column. An index outside the window belongs to no
          // pixel.
          constexpr I far = std::numeric_limits<I>::min() / 2;
          const int64_t distance = held.index[0].v[0] - pixel;
          const I taken = distance == int64_t(I(distance)) && distance > far ? I(distance) : far;
          const I top = begin_of(g.h, oh) - h, left = begin_of(g.w, ow) - w;
          using Unsigned = std::make_unsigned_t<I>;
#pragma unroll
          for (int r = 0; r < height; ++r) {
            const I v_taken = taken - I(r) * g.w.size;
            const bool covers = Unsigned(v_taken - left) < Unsigned(g.w.reach) &&
                                (height == 1 || Unsigned(I(r) - top) < Unsigned(g.h.reach));
#pragma unroll
            for (int v = 0; v < width; ++v) {
              if (covers && v_taken == v) sum[r][v] += A(held.grad.v[0]);
            }
          }
        }
      });
  store_patch<across, width>(g, grad_x, at.n, h, w, c, unit, sum);
}

// `full_share` is 1 / (the number of elements counted by a window inside the map).
template <bool across, int width, class T, class I, class H, class W>
__global__ void __launch_bounds__(vectorized_threads)
    average_backward_kernel(const Grid<I, H, W> g, const Pixels<I> pixels, const T* grad, acc_t<T> full_share,
                            T* grad_x, int unit) {
  using A = acc_t<T>;
  constexpr int height = patch_height<across, H>, channels = across ? width : 1;
  const auto at = pixels.mine();
  if (!at.exists) return;
  const I c = at.inner * channels, h = at.row * height, w = across ? at.column : at.column * width;
  A sum[height][width] = {};
  using Held = block::Vector<T, channels>;
  const auto load = [&](I o) { return load_vector<T, channels>(grad + o); };
  for_windows<load_ahead<across, H>, height, across ? 1 : width>(
      g, at.n, h, w, c, load, [&](I oh, I ow, const Held& held) {
        const I count_h = counted_by(g.h, oh, g.count_include_pad), count_w = counted_by(g.w, ow, g.count_include_pad);
        const bool full = count_h == g.h.kernel && count_w == g.w.kernel;
        const A share = full ? full_share : A(1) / (A(count_h) * A(count_w));
        if constexpr (across) {
#pragma unroll
          for (int v = 0; v < width; ++v) sum[0][v] += A(held.v[v]) * share;
        } else {
          const I top = begin_of(g.h, oh) - h, left = begin_of(g.w, ow) - w;
          const A each = A(held.v[0]) * share;
#pragma unroll
          for (int r = 0; r < height; ++r) {
            const bool covers_row = height == 1 || (r >= top && r < top + g.h.reach);
#pragma unroll
            for (int v = 0; v < width; ++v) {
              if (covers_row && v >= left && v < left + g.w.reach) sum[r][v] += each;
            }
          }
        }
      });
  store_patch<across, width>(g, grad_x, at.n, h, w, c, unit, sum);
}

}  // namespace tp::pooling
