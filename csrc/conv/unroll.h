// The kernels around the matrix product of im2col_gemm: they convert a tile of the problem to matrices and back. A
// column of every matrix is an output pixel of the tile.
#pragma once
#include <algorithm>

#include "conv/each.h"
#include "conv/elements.h"
#include "conv/tiles.h"

namespace tp::conv {

// The pixel of column `i` of a tile.
struct Pixel {
  int64_t image, h, w;
  TP_HD Pixel(const Tile& t, int64_t i)
      : image(t.image + i / (t.height * t.width)), h(t.h + i / t.width % t.height), w(t.w + i % t.width) {}
};

// Writes the unrolled matrix row by row (Fig. 16.17); on the CPU each row is written sequentially.
template <class T, class Out>
void unroll_on_host(Context& context, const Elements<T>& e, const Tile& t, int64_t depth, Out* matrix) {
  const int64_t columns = t.pixels(), used = e.channels * e.taps();
  context.parallel_for(e.groups * depth, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      Out* to = matrix + row * columns;
      const int64_t inside = row % depth, tap = inside % e.taps(), c = row / depth * e.channels + inside / e.taps();
      if (inside == used) {
        std::fill(to, to + columns, Out(1.0f));
        continue;
      }
      for (int64_t line = 0; line < t.images * t.height; ++line) {
        const int64_t n = t.image + line / t.height, i = e.rows.source(t.h + line % t.height, tap / e.cols.kernel);
        const bool padding = i < 0 || i >= e.rows.in;
        const T* from = padding ? nullptr : e.x + e.x_at(n, c, i, 0);
        int64_t j = e.cols.source(t.w, tap % e.cols.kernel);
        for (int64_t w = 0; w < t.width; ++w, j += e.cols.stride) {
          *to++ = padding || j < 0 || j >= e.cols.in ? Out(0.0f) : Out(from[j]);
        }
      }
    }
  });
}

// Copies the output maps of a tile between y and the matrix [m, columns].
template <class T, class A, bool to_matrix>
struct Maps {
  Elements<T> e;
  Tile tile;
  A* matrix;

  template <class X, class M>
  struct Bound {
    Maps k;
    X x;
    M matrix;
    TP_HD void operator()(int64_t item) const {
      const Pixel pixel(k.tile, item % k.tile.pixels());
      const int64_t at = k.e.y_at(pixel.image, item / k.tile.pixels(), pixel.h, pixel.w);
      if constexpr (to_matrix) {
        const T value = x.y[at];
        matrix[item] = A(value);
      } else {
        const A value = matrix[item];
        x.y[at] = T(value);
      }
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto x = e.bind(block);
    const auto m = block.global("maps", matrix, e.m * tile.pixels());
    return Bound<std::decay_t<decltype(x)>, std::decay_t<decltype(m)>>{*this, x, m};
  }
};

// The adjoint of unroll, as a gather: item (n, c, i, j) of the tile `target` of dx adds up the elements of `matrix` [c,
// taps, columns] for the taps that read it. The columns of the matrix are the pixels of `from`.
template <class T>
struct Fold {
  using A = acc_t<T>;
  Elements<T> e;
  Tile target, from;
  A* matrix;

  template <class X, class U>
  struct Bound {
    Fold k;
    X x;
    U u;
    TP_HD void operator()(int64_t item) const {
      const Elements<T>& e = k.e;
      const Tile &t = k.target, &from = k.from;
      const int64_t j = t.w + item % t.width, i = t.h + item / t.width % t.height;
      const int64_t c = item / (t.width * t.height) % e.c, n = item / (t.width * t.height) / e.c;
      A sum = 0;
      for (int64_t p = 0; p < e.rows.kernel; ++p) {
        const int64_t h = e.rows.reader(i, p);
        if (h < 0) continue;
        for (int64_t q = 0; q < e.cols.kernel; ++q) {
          const int64_t w = e.cols.reader(j, q);
          if (w < 0) continue;
          const int64_t column = (n * from.height + h - from.h) * from.width + w - from.w;
          const A value = u[(c * e.taps() + p * e.cols.kernel + q) * from.pixels() + column];
          sum += value;
        }
      }
      x.x[e.x_at(t.image + n, c, i, j)] = T(sum);
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto x = e.bind(block);
    const auto u = block.global("x_unroll", matrix, e.c * e.taps() * from.pixels());
    return Bound<std::decay_t<decltype(x)>, std::decay_t<decltype(u)>>{*this, x, u};
  }
};

// The filters as a matrix [m, taps + 1]; the last column is the bias, the weight of an input that is always one.
template <class T>
struct WithBias {
  Elements<T> e;
  T* matrix;

  template <class X, class M>
  struct Bound {
    int64_t taps;
    X x;
    M matrix;
    TP_HD void operator()(int64_t i) const {
      const int64_t map = i / (taps + 1), tap = i % (taps + 1);
      if (tap < taps) {
        const T value = x.weight[map * taps + tap];
        matrix[i] = value;
      } else {
        const T value = x.bias[map];
        matrix[i] = value;
      }
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto x = e.bind(block);
    const int64_t taps = e.channels * e.taps();
    const auto m = block.global("filters", matrix, e.m * (taps + 1));
    return Bound<std::decay_t<decltype(x)>, std::decay_t<decltype(m)>>{taps, x, m};
  }
};

}  // namespace tp::conv
