// The transforms of Winograd's F(2 x 2, 3 x 3), which winograd.cu explains.
#pragma once
#include "conv/conv.h"

namespace tp::conv::winograd_tile {

constexpr int side = 4, components = side * side, outputs = 2, taps = 3;

// Whether the kernels for filters of 3 x 3 suit an axis, on which they count positions in int.
inline bool suits_kernels(const Axis& a) {
  constexpr int64_t most = int64_t(1) << 29;
  return a.kernel == taps && a.stride == 1 && a.dilation == 1 && a.pad < most && a.in < most && a.out < most;
}

// The three transforms along one axis, in place, and their transposes; `at` finds element i.
template <class A>
struct Transforms {
  // B^T: four inputs.
  static TP_HD void input(A (&v)[side]) {
    const A a = v[0] - v[2], b = v[1] + v[2], c = v[2] - v[1], d = v[1] - v[3];
    v[0] = a, v[1] = b, v[2] = c, v[3] = d;
  }
  // 2 G: three taps to four.
  static TP_HD void filter(A (&v)[side]) {
    const A a = v[0] + v[0], b = v[0] + v[1] + v[2], c = v[0] - v[1] + v[2], d = v[2] + v[2];
    v[0] = a, v[1] = b, v[2] = c, v[3] = d;
  }
  // A^T: four products to two outputs.
  static TP_HD void output(A (&v)[side]) {
    const A a = v[0] + v[1] + v[2], b = v[1] - v[2] - v[3];
    v[0] = a, v[1] = b, v[2] = v[3] = 0;
  }
  // A: two gradients to four.
  static TP_HD void gradient(A (&v)[side]) {
    const A a = v[0], b = v[0] + v[1], c = v[0] - v[1], d = -v[1];
    v[0] = a, v[1] = b, v[2] = c, v[3] = d;
  }
  // 2 G^T: four sums to three taps.
  static TP_HD void taps_of(A (&v)[side]) {
    const A a = v[0] + v[0] + v[1] + v[2], b = v[1] - v[2], c = v[1] + v[2] + v[3] + v[3];
    v[0] = a, v[1] = b, v[2] = c, v[3] = 0;
  }
};

// Transforms one 4 x 4 tile along both axes.
template <class A>
struct Patch {
  A v[side][side];

  template <class F>
  TP_HD void transform(const F& f) {
    for (int i = 0; i < side; ++i) f(v[i]);
    for (int j = 0; j < side; ++j) {
      A column[side];
      for (int i = 0; i < side; ++i) column[i] = v[i][j];
      f(column);
      for (int i = 0; i < side; ++i) v[i][j] = column[i];
    }
  }
};

}  // namespace tp::conv::winograd_tile
