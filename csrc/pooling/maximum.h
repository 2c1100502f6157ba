// Maximum pooling. NaN counts as greater than any number; of equal values, and of NaNs, the first in row-major order
// wins.
#pragma once
#include "pooling/windows.h"

namespace tp::pooling {

// first ? a : b without a branch, because no branch predictor can tell which pixel is the greatest.
template <class A>
TP_HD A pick(bool first, A a, A b) {
  using Small = std::conditional_t<sizeof(A) == 2, uint16_t, uint8_t>;
  using Bits = std::conditional_t<sizeof(A) == 4, uint32_t, std::conditional_t<sizeof(A) == 8, uint64_t, Small>>;
  Bits bits_a, bits_b;
  memcpy(&bits_a, &a, sizeof(A));
  memcpy(&bits_b, &b, sizeof(A));
  const Bits mask = Bits(-int64_t(first)), bits = Bits((bits_a & mask) | (bits_b & ~mask));
  memcpy(&a, &bits, sizeof(A));
  return a;
}

template <class T, class Index, class Axis>
struct Maximum {
  static constexpr const char* name = "max_pooling";
  const T* x;
  T* y;
  Index* indices;
  Maps in, out;
  Axis h, w;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto from = block.global("x", x, in.size());
    const auto to = block.global("y", y, out.size());
    const auto index_of = block.global("indices", indices, out.size());
    return [=, *this](int64_t row) {
      const Row o_row = row_of(out, row);
      const Range rows = window(h, o_row.first.h);
      return [=, *this](int64_t column) {
        const Pixel o = o_row.pixel(column);
        const Range cols = window(w, o.w);
        // The index of the first tap is that of the maximum if all values are -inf.
        int64_t index = rows.begin * w.size + cols.begin;
        acc_t<T> best = load<T>(from, offset_of(in, o, rows.begin, cols.begin));
        for (int64_t i = 0; i < rows.count; ++i) {
          for (int64_t j = 0; j < cols.count; ++j) {
            const int64_t ih = rows.begin + i * dilation(h), iw = cols.begin + j * dilation(w);
            const acc_t<T> value = load<T>(from, offset_of(in, o, ih, iw));
            const bool greater = !(value <= best) & (best == best);
            best = pick(greater, value, best);
            index = pick(greater, ih * w.size + iw, index);
          }
        }
        to[offset_of(out, o)] = T(best);
        index_of[offset_of(out, o)] = Index(index);
      };
    };
  }
};

// grad_x = the sum of grad over the windows whose maximum is this pixel. An index outside its window belongs to no
// pixel.
template <class T, class Index, class Axis>
struct MaximumBackward {
  static constexpr const char* name = "max_pooling_backward";
  const T* grad;
  const Index* indices;
  T* grad_x;
  Maps in, out;
  Axis h, w;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto from = block.global("grad", grad, out.size());
    const auto index_of = block.global("indices", indices, out.size());
    const auto to = block.global("grad_x", grad_x, in.size());
    return [=, *this](int64_t row) {
      const Row p_row = row_of(in, row);
      const Range rows = windows_over(h, p_row.first.h);
      return [=, *this](int64_t column) {
        const Pixel p = p_row.pixel(column);
        const Range cols = windows_over(w, p.w);
        acc_t<T> sum = 0;
        for (int64_t i = 0; i < rows.count; ++i) {
          for (int64_t j = 0; j < cols.count; ++j) {
            const int64_t o = offset_of(out, p, rows.begin + i, cols.begin + j), taken = Index(index_of[o]);
            sum += pick(taken == p.h * w.size + p.w, load<T>(from, o), acc_t<T>(0));
          }
        }
        to[offset_of(in, p)] = T(sum);
      };
    };
  }
};

// y = x at the window's index; 0 if the index lies outside its window, because it then passes no gradient on either.
template <class T, class Index, class Axis>
struct MaximumTangent {
  static constexpr const char* name = "max_pooling_tangent";
  const T* x;
  const Index* indices;
  T* y;
  Maps in, out;
  Axis h, w;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto from = block.global("x", x, in.size());
    const auto index_of = block.global("indices", indices, out.size());
    const auto to = block.global("y", y, out.size());
    return [=, *this](int64_t row) {
      const Row o_row = row_of(out, row);
      return [=, *this](int64_t column) {
        const Pixel o = o_row.pixel(column);
        const int64_t taken = Index(index_of[offset_of(out, o)]), i = taken / w.size, j = taken % w.size;
        T value(0);
        if (taken >= 0 && i < h.size && within(windows_over(h, i), o.h) && within(windows_over(w, j), o.w)) {
          value = from[offset_of(in, o, i, j)];
        }
        to[offset_of(out, o)] = value;
      };
    };
  }

  TP_HD static bool within(Range range, int64_t o) { return o >= range.begin && o - range.begin < range.count; }
};

}  // namespace tp::pooling
