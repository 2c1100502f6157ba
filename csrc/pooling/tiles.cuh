// Shared by the kernels of the vectorized rung: cheap divisions, windows with as many compile-time constants as
// possible, and the assignment of pixels to threads.
//
// Offsets inside a launch have type I. With int32_t, which is several times as fast, a launch takes as many maps as
// have at most 2^30 elements on either side (launch_elements), and a larger batch is divided into several launches.
// int64_t is for single maps with more elements, and for axes that are longer than that together with their padding.
#pragma once
#include "block/load_store.cuh"
#include "block/per_output.h"
#include "pooling/pooling.h"

namespace tp::pooling {

constexpr int vectorized_threads = 256;

// n / d for 0 <= n < 2^31, by a multiplication (Granlund and Montgomery): the upper half of n m, plus n, shifted.
template <class I>
struct Divisor {
  uint32_t d, multiplier;
  int shift = 0;

  Divisor(int64_t divisor) : d(uint32_t(divisor)) {
    while ((int64_t(1) << shift) < divisor) ++shift;
    multiplier = uint32_t(((uint64_t(1) << 32) * ((uint64_t(1) << shift) - d)) / d + 1);
  }
  TP_DEVICE I quotient(I n) const { return I((__umulhi(uint32_t(n), multiplier) + uint32_t(n)) >> shift); }
  TP_DEVICE I take(I& n) const {  // replaces n by n / d and returns the remainder
    const I q = quotient(n), r = n - q * I(d);
    n = q;
    return r;
  }
};

template <>
struct Divisor<int64_t> {
  int64_t d;
  Divisor(int64_t divisor) : d(divisor) {}
  TP_DEVICE int64_t quotient(int64_t n) const { return floor_div(n, d); }
  TP_DEVICE int64_t take(int64_t& n) const {
    const int64_t q = quotient(n), r = n - q * d;
    n = q;
    return r;
  }
};

// Windows along one dimension; the specializations of `Windows` below have constant kernel and stride.
template <class I>
struct AnyWindows {
  static constexpr int constant_kernel = 0;
  static constexpr bool never_overlaps = false;
  I size, outputs, kernel, stride, padding, dilation, reach;

  explicit AnyWindows(const Axis& a)
      : size(I(a.size)),
        outputs(I(a.outputs)),
        kernel(I(a.kernel)),
        stride(I(a.stride)),
        padding(I(a.padding)),
        dilation(I(a.dilation)),
        reach(I(a.reach())) {}
};

template <int kernel_, int stride_>
struct Windows {
  static constexpr int constant_kernel = kernel_;
  static constexpr bool never_overlaps = kernel_ <= stride_;
  static constexpr int32_t kernel = kernel_, stride = stride_, dilation = 1, reach = kernel_;
  int32_t size, outputs, padding;

  explicit Windows(const Axis& a) : size(int32_t(a.size)), outputs(int32_t(a.outputs)), padding(int32_t(a.padding)) {}
  static bool fits(const Axis& a) { return a.kernel == kernel && a.stride == stride && a.dilation == 1; }
};

// The first pixel of window o; negative if it lies in the padding.
template <class W, class I>
TP_DEVICE I begin_of(const W& axis, I o) {
  return o * axis.stride - axis.padding;
}

// The first tap that lies inside the map, of a window that begins at `begin`.
template <class W, class I>
TP_DEVICE I first_tap(const W& axis, I begin) {
  if (begin >= 0) return begin;
  return axis.dilation == 1 ? I(0) : begin + ceil_div(-begin, I(axis.dilation)) * axis.dilation;
}

// The windows that cover any of the `count` pixels from i on: o with first <= o <= last.
template <class I>
struct Over {
  I first, last;
};
template <int count, class W, class I>
TP_DEVICE Over<I> windows_reaching(const W& axis, I i) {
  const I before = i + axis.padding - axis.reach;  // a window that begins here ends before i
  return {before < 0 ? I(0) : before / axis.stride + 1,
          tp::min(I((i + count - 1 + axis.padding) / axis.stride), I(axis.outputs - 1))};
}
// The greatest possible number of such windows if their size is constant.
template <int count, class W>
constexpr int most_windows = (count + W::reach - 2) / W::stride + 1;

// The number of elements that window o counts: its pixels, with or without those of the padding.
template <class W, class I>
TP_DEVICE I counted_by(const W& axis, I o, bool include_padding) {
  const I begin = begin_of(axis, o), end = begin + axis.kernel;
  if (include_padding) return tp::min(end, I(axis.size + axis.padding)) - begin;
  return tp::min(end, I(axis.size)) - tp::max(begin, I(0));
}

// The maps of a launch, input and output, as [outer, h, w, inner].
template <class I, class H, class W>
struct Grid {
  H h;
  W w;
  I inner, outer;
  bool count_include_pad;

  TP_DEVICE I in_offset(I n, I ih, I iw, I c) const { return ((n * h.size + ih) * w.size + iw) * inner + c; }
  TP_DEVICE I out_offset(I n, I oh, I ow, I c) const { return ((n * h.outputs + oh) * w.outputs + ow) * inner + c; }
};

// Assigns `outer` maps of rows x columns vectors to threads, in memory order. A vector consists of adjacent pixels of a
// row (`inner_vectors` = 1) or, channels last, of adjacent channels of one pixel.
template <class I>
struct Pixels {
  I count;
  Divisor<I> inner_vectors, columns, rows;

  Pixels(int64_t outer, int64_t rows, int64_t columns, int64_t inner_vectors)
      : count(I(outer * rows * columns * inner_vectors)), inner_vectors(inner_vectors), columns(columns), rows(rows) {}

  struct Coordinates {
    I n, row, column, inner;
    bool exists;
  };
  TP_DEVICE Coordinates mine() const {
    I i = I(blockIdx.x) * vectorized_threads + I(threadIdx.x);
    Coordinates p;
    p.exists = i < count;
    p.inner = inner_vectors.take(i);
    p.column = columns.take(i);
    p.row = rows.take(i);
    p.n = i;
    return p;
  }
  unsigned blocks() const { return unsigned(ceil_div(int64_t(count), int64_t(vectorized_threads))); }
};

template <class T, int width>
TP_DEVICE block::Vector<T, width> load_vector(const T* p) {
  return *reinterpret_cast<const block::Vector<T, width>*>(p);
}
template <class T, int width>
TP_DEVICE void store_vector(T* p, const block::Vector<T, width>& v) {
  *reinterpret_cast<block::Vector<T, width>*>(p) = v;
}

// The taps of `height` x `across` adjacent windows, the first of which begins at row h0 and column w0 of a map; the
// kernel size is constant. All taps are loaded before any is used, so the loads overlap. A tap outside the map does not
// count; it is loaded from some pixel inside.
template <int height, int across, int width, class T, class I, class H, class W>
struct Taps {
  static constexpr int rows = (height - 1) * H::stride + H::constant_kernel;
  static constexpr int columns = (across - 1) * W::stride + W::constant_kernel;
  I row[rows], column[columns];
  bool row_exists[rows], column_exists[columns];
  block::Vector<T, width> values[rows][columns];

  // With `quads`, rows of the map begin at multiples of four elements, and padding is at most one column.
  TP_DEVICE Taps(const Grid<I, H, W>& g, const T* map, I h0, I w0, bool quads = false) {
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      row_exists[i] = h0 + i >= 0 && h0 + i < g.h.size;
      row[i] = tp::min(tp::max(h0 + i, I(0)), g.h.size - 1) * g.w.size;
    }
#pragma unroll
    for (int j = 0; j < columns; ++j) {
      column_exists[j] = w0 + j >= 0 && w0 + j < g.w.size;
      column[j] = tp::min(tp::max(w0 + j, I(0)), g.w.size - 1);
    }
    if constexpr (width == 1 && columns >= 4) {
      if (quads) {
        load_quads(map, w0, g.w.size, g.w.padding);
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < rows; ++i) {
#pragma unroll
      for (int j = 0; j < columns; ++j) values[i][j] = load_vector<T, width>(map + (row[i] + column[j]) * g.inner);
    }
  }

 private:
  // Loads four neighbouring columns at once, from a multiple of four on, and the column before or after them.
  TP_DEVICE void load_quads(const T* map, I w0, I size, I padding) {
    const I first = tp::min(w0 + padding, size - 4), outside = padding ? column[0] : column[columns - 1];
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      const auto quad = load_vector<T, 4>(map + row[i] + first);
      T other(0.0f);
      if (columns > 4 || padding) other = map[row[i] + outside];
#pragma unroll
      for (int j = 0; j < columns; ++j) {
        const T right = j < 4 ? quad.v[j] : other, left = j > 0 ? quad.v[j - 1] : other;
        values[i][j].v[0] = padding ? left : right;
      }
    }
  }
};

// Calls use(pixel, values) for every tap of the window that begins at row h0 and column w0, in row-major order.
template <int width, class T, class I, class H, class W, class Use>
TP_DEVICE void for_taps(const Grid<I, H, W>& g, const T* map, I h0, I w0, Use use) {
  const I end_h = tp::min(I(h0 + g.h.reach), g.h.size), end_w = tp::min(I(w0 + g.w.reach), g.w.size);
  const I first_w = first_tap(g.w, w0);
  for (I ih = first_tap(g.h, h0); ih < end_h; ih += g.h.dilation) {
    for (I iw = first_w; iw < end_w; iw += g.w.dilation) {
      const I pixel = ih * g.w.size + iw;
      use(pixel, load_vector<T, width>(map + pixel * g.inner));
    }
  }
}

// Calls use(oh, ow, load(o)) for every window that covers any of `height` x `width` pixels from row h and column w on,
// in row-major order; o is the window's index in arrays like the output. With `ahead`, all windows are loaded before
// any is used: this needs windows of constant size, and pays if most windows that could cover a pixel do.
template <bool ahead, int height, int width, class I, class H, class W, class Load, class Use>
TP_DEVICE void for_windows(const Grid<I, H, W>& g, I n, I h, I w, I c, Load load, Use use) {
  const Over<I> rows = windows_reaching<height>(g.h, h), columns = windows_reaching<width>(g.w, w);
  if constexpr (ahead) {
    constexpr int most_h = most_windows<height, H>, most_w = most_windows<width, W>;
    decltype(load(I(0))) held[most_h][most_w];
#pragma unroll
    for (int i = 0; i < most_h; ++i) {
      const I first = g.out_offset(n, tp::min(rows.first + i, g.h.outputs - 1), 0, c);
#pragma unroll
      for (int j = 0; j < most_w; ++j) {
        held[i][j] = load(first + tp::min(columns.first + j, g.w.outputs - 1) * g.inner);
      }
    }
#pragma unroll
    for (int i = 0; i < most_h; ++i) {
#pragma unroll
      for (int j = 0; j < most_w; ++j) {
        const bool exists = rows.first + i <= rows.last && columns.first + j <= columns.last;
        if (exists) use(rows.first + i, columns.first + j, held[i][j]);
      }
    }
  } else {
    for (I oh = rows.first; oh <= rows.last; ++oh) {
      for (I ow = columns.first; ow <= columns.last; ++ow) use(oh, ow, load(g.out_offset(n, oh, ow, c)));
    }
  }
}

// The number of indices that a thread moves at once for `width` channels: 16 bytes.
template <class Index, int width>
constexpr int indices_at_once = width * int(sizeof(Index)) < 16 ? width : 16 / int(sizeof(Index));

}  // namespace tp::pooling
