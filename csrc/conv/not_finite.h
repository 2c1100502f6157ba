// Computes again what is not finite. Transforms of images mix neighbouring pixels, so an infinity or a NaN spreads to
// outputs that do not read it, and sums of large pixels may overflow where no output does. All outputs that this
// reaches are infinite or NaN. So the kernel that writes transformed outputs notes whether one of them is not finite,
// and this kernel then replaces those by the sum of their products (Fig. 16.6 and 16.10), one thread per output. If all
// are finite, as usual, it only reads the note. Where nothing is noted, as filters are few, it reads all of them
// instead.
#pragma once
#include "conv/each.h"
#include "conv/gather.h"

namespace tp::conv {

template <class T>
struct ComputeAgain {
  using A = acc_t<T>;
  Elements<T> e;
  Pass pass;
  const boolean* noted;  // null if results are not noted

  template <class Conv, class Noted>
  struct Bound {
    Conv conv;
    Pass pass;
    Noted noted;
    bool has_note;

    TP_HD void operator()(int64_t i) const {
      if (has_note) {
        const boolean any = noted[0];
        if (any == boolean(false)) return;
      }
      if (pass == Pass::wgrad) {
        const T value = conv.weight[i];
        if (!is_finite(A(value))) conv.weight[i] = T(filter(i));
        return;
      }
      const auto& to = pass == Pass::fprop ? conv.y : conv.x;
      const T value = to[i];
      if (is_finite(A(value))) return;
      to[i] = T(pass == Pass::fprop ? output(i) : gradient(i));
    }
    // Element i of y in memory. A sum that has become NaN remains NaN.
    TP_HD A output(int64_t i) const {
      const Elements<T>& e = conv.e;
      const Coordinates at = coordinates(i, e.m, e.rows.out, e.cols.out, e.y_strides);
      const int64_t group = at.channel / e.maps * e.channels;  // the group's first channel
      A sum = 0;
      for (int64_t c = 0; c < e.channels && sum == sum; ++c) {
        for (int64_t p = 0; p < e.rows.kernel; ++p) {
          for (int64_t q = 0; q < e.cols.kernel; ++q) {
            const T weight = conv.weight[e.weight_at(at.channel, c, p, q)];
            sum += conv.padded(at.image, group + c, e.rows.source(at.row, p), e.cols.source(at.col, q)) * A(weight);
          }
        }
      }
      T shift(0.0f);
      if (e.bias) shift = conv.bias[at.channel];
      return sum + A(shift);
    }
    // Element i of dx in memory.
    TP_HD A gradient(int64_t i) const {
      const Elements<T>& e = conv.e;
      const Coordinates at = coordinates(i, e.c, e.rows.in, e.cols.in, e.x_strides);
      const int64_t group = at.channel / e.channels * e.maps;  // the group's first map
      A sum = 0;
      for (int64_t m = group; m < group + e.maps && sum == sum; ++m) {
        for (int64_t p = 0; p < e.rows.kernel; ++p) {
          for (int64_t q = 0; q < e.cols.kernel; ++q) {
            const int64_t h = e.rows.reader(at.row, p), w = e.cols.reader(at.col, q);
            if (h < 0 || w < 0) continue;
            const T g = conv.y[e.y_at(at.image, m, h, w)],
                    weight = conv.weight[e.weight_at(m, at.channel % e.channels, p, q)];
            sum += A(g) * A(weight);
          }
        }
      }
      return sum;
    }
    // Element i of dw in memory.
    TP_HD A filter(int64_t i) const {
      const Elements<T>& e = conv.e;
      int64_t q = i, p = divide(q, e.cols.kernel), c = divide(p, e.rows.kernel), m = divide(c, e.channels);
      const int64_t channel = m / e.maps * e.channels + c;
      A sum = 0;
      for (int64_t image = 0; image < e.n && sum == sum; ++image) {
        for (int64_t h = 0; h < e.rows.out; ++h) {
          for (int64_t w = 0; w < e.cols.out; ++w) {
            const T g = conv.y[e.y_at(image, m, h, w)];
            sum += A(g) * conv.padded(image, channel, e.rows.source(h, p), e.cols.source(w, q));
          }
        }
      }
      return sum;
    }

    struct Coordinates {
      int64_t image, channel, row, col;
    };
    static TP_HD Coordinates coordinates(int64_t i, int64_t channels, int64_t rows, int64_t cols,
                                         const Strides& strides) {
      Coordinates at{};
      at.image = divide(i, channels * rows * cols);
      if (strides.channel == 1) {
        at.row = divide(i, cols * channels), at.col = divide(i, channels), at.channel = i;
      } else {
        at.channel = divide(i, rows * cols), at.row = divide(i, cols), at.col = i;
      }
      return at;
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto conv = e.bind(block);
    const auto note = block.global("noted", noted, noted ? 1 : 0);
    return Bound<std::decay_t<decltype(conv)>, std::decay_t<decltype(note)>>{conv, pass, note, noted != nullptr};
  }
};

template <class T>
void compute_again(const Elements<T>& e, Pass pass, const boolean* noted, Context& context) {
  const int64_t n = pass == Pass::wgrad   ? e.weights()
                    : pass == Pass::fprop ? e.n * e.m * e.rows.out * e.cols.out
                                          : e.n * e.c * e.rows.in * e.cols.in;
  constexpr int64_t blocks = 1024;  // one wave: usually each thread only finds that it has nothing to do
  each(context, "not_finite", n, ComputeAgain<T>{e, pass, noted}, blocks);
}

}  // namespace tp::conv
