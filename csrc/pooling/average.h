// Average pooling and the subsampling layer (Fig. 16.7).
#pragma once
#include "pooling/windows.h"

namespace tp::pooling {

// y = f(mean of the window + bias of the map).
template <Activation f, class T, class Out, class Axis>
struct Average {
  static constexpr const char* name = "average_pooling";
  const T *x, *bias;
  Out* y;
  Maps in, out;
  Axis h, w;
  int64_t maps;
  bool count_include_pad;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto from = block.global("x", x, in.size());
    const auto biases = block.global("bias", bias, maps);
    const auto to = block.global("y", y, out.size());
    return [=, *this](int64_t row) {
      const Row o_row = row_of(out, row);
      const Range rows = window(h, o_row.first.h);
      const int64_t count = counted(h, o_row.first.h, count_include_pad);
      return [=, *this](int64_t column) {
        const Pixel o = o_row.pixel(column);
        const Range cols = window(w, o.w);
        acc_t<T> sum = 0;
        for (int64_t i = 0; i < rows.count; ++i) {
          for (int64_t j = 0; j < cols.count; ++j)
            sum += load<T>(from, offset_of(in, o, rows.begin + i, cols.begin + j));
        }
        sum /= acc_t<T>(count * counted(w, o.w, count_include_pad));
        if (bias) sum += load<T>(biases, in.inner == 1 ? o.outer % maps : o.inner);
        to[offset_of(out, o)] = Out(activate<f>(sum));
      };
    };
  }
};

// grad_x = sum of grad / (the number of elements that the window counts) over the windows that cover the pixel.
template <class In, class T, class Axis>
struct AverageBackward {
  static constexpr const char* name = "average_pooling_backward";
  const In* grad;
  T* grad_x;
  Maps in, out;
  Axis h, w;
  bool count_include_pad;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto from = block.global("grad", grad, out.size());
    const auto to = block.global("grad_x", grad_x, in.size());
    return [=, *this](int64_t row) {
      const Row p_row = row_of(in, row);
      const Range rows = windows_over(h, p_row.first.h);
      return [=, *this](int64_t column) {
        const Pixel p = p_row.pixel(column);
        const Range cols = windows_over(w, p.w);
        acc_t<In> sum = 0;
        for (int64_t i = 0; i < rows.count; ++i) {
          for (int64_t j = 0; j < cols.count; ++j) {
            const int64_t oh = rows.begin + i, ow = cols.begin + j;
            const int64_t count = counted(h, oh, count_include_pad) * counted(w, ow, count_include_pad);
            sum += load<In>(from, offset_of(out, p, oh, ow)) / acc_t<In>(count);
          }
        }
        to[offset_of(in, p)] = T(sum);
      };
    };
  }
};

}  // namespace tp::pooling
