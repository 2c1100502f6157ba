// The arrays of a convolution as a kernel sees them: the position of each element, and padding that reads as zeros.
#pragma once
#include "conv/conv.h"
#include "core/simt.h"

namespace tp::conv {

using simt::Pointers;

// The distances in memory between neighbours, along each dimension of a batch of images.
struct Strides {
  int64_t image, channel, row, col;

  Strides(Layout layout, int64_t channels, int64_t rows, int64_t cols)
      : image(channels * rows * cols),
        channel(layout == Layout::nchw ? rows * cols : 1),
        row(layout == Layout::nchw ? cols : cols * channels),
        col(layout == Layout::nchw ? 1 : channels) {}
  TP_HD int64_t at(int64_t n, int64_t c, int64_t i, int64_t j) const {
    return n * image + c * channel + i * row + j * col;
  }
};

template <class T, class Array, class ConstArray>
struct BoundElements;

template <class T>
struct Elements {
  using A = acc_t<T>;
  T *x, *weight, *y;
  const T* bias;
  int64_t n, c, m, groups, channels, maps;  // channels and maps of one group
  Axis rows, cols;
  Strides x_strides, y_strides;
  Layout filters;

  explicit Elements(const Args& a)
      : x(static_cast<T*>(a.x)),
        weight(static_cast<T*>(a.weight)),
        y(static_cast<T*>(a.y)),
        bias(static_cast<const T*>(a.bias)),
        n(a.n),
        c(a.c),
        m(a.m),
        groups(a.groups),
        channels(a.c / a.groups),
        maps(a.m / a.groups),
        rows(a.rows),
        cols(a.cols),
        x_strides(a.layout, a.c, a.rows.in, a.cols.in),
        y_strides(a.layout, a.m, a.rows.out, a.cols.out),
        filters(a.filters) {}

  TP_HD int64_t taps() const { return rows.kernel * cols.kernel; }
  TP_HD int64_t weights() const { return m * channels * taps(); }
  TP_HD int64_t x_at(int64_t image, int64_t channel, int64_t i, int64_t j) const {
    return x_strides.at(image, channel, i, j);
  }
  TP_HD int64_t y_at(int64_t image, int64_t map, int64_t h, int64_t w) const { return y_strides.at(image, map, h, w); }
  // The index of tap (p, q) of the filter that leads from `channel` of the group to `map`, in nchw.
  TP_HD int64_t weight_at(int64_t map, int64_t channel, int64_t p, int64_t q) const {
    return ((map * channels + channel) * rows.kernel + p) * cols.kernel + q;
  }

  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto in = block.global("x", x, n * c * rows.in * cols.in);
    const auto filters = block.global("weight", weight, weights());
    const auto out = block.global("y", y, n * m * rows.out * cols.out);
    const auto shift = block.global("bias", bias, bias ? m : 0);
    return BoundElements<T, std::decay_t<decltype(in)>, std::decay_t<decltype(shift)>>{*this, in, filters, out, shift};
  }
};

// Elements whose arrays are bound to a block.
template <class T_, class Array, class ConstArray>
struct BoundElements {
  using T = T_;
  using A = acc_t<T>;
  Elements<T> e;
  Array x, weight, y;
  ConstArray bias;

  // The input at row i and column j, which is zero where that is padding.
  TP_HD A padded(int64_t image, int64_t channel, int64_t i, int64_t j) const {
    if (i < 0 || i >= e.rows.in || j < 0 || j >= e.cols.in) return A(0);
    const T value = x[e.x_at(image, channel, i, j)];
    return A(value);
  }
};

}  // namespace tp::conv
