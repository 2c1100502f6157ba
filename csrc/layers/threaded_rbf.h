// Gaussian outputs and their gradients by the threaded rung.
#pragma once
#include <vector>

#include "block/exponential.h"
#include "block/on_vectors.h"
#include "layers/compute.h"

namespace tp::layers::host {

constexpr int64_t gaussian_grain = 1 << 14;  // operations that pay for a thread

// As Gaussian in layers/rbf.h: y[n, c] = exp(-|x[n] - centre[c]|^2 / (2 sigma^2)), times grad if there is one. The
// lanes of a vector are different points, so a centre's coordinate is the same for all lanes, and no sum crosses lanes.
template <class T, class Out>
struct Gaussians {
  using A = acc_t<T>;
  typedef A Vector __attribute__((vector_size(32), aligned(sizeof(A)), may_alias));
  static constexpr int lanes = 32 / int(sizeof(A)), side = 2 * lanes;
  static constexpr int64_t some = 32;  // terms of a sum that are added up separately
  const T *x, *centres, *grad;
  Out* out;
  int64_t rows, classes, features;
  BySigma<A> by_sigma;

  // Computes points first to first + side - 1. `points` has room for their coordinates.
  void compute(int64_t first, A* points) const {
    const int64_t count = tp::min(int64_t(side), rows - first);
    for (int64_t l = 0; l < side; ++l) {
      const T* point = x + (first + tp::min(l, count - 1)) * features;
      for (int64_t d = 0; d < features; ++d) points[d * side + l] = A(point[d]);
    }
    for (int64_t c = 0; c < classes; ++c) {
      Vector low{}, high{};
      for (int64_t d = 0; d < features; d += some) add(points, centres + c * features, d, low, high);
      A y[side];
      *reinterpret_cast<Vector*>(y) = low, *reinterpret_cast<Vector*>(y + lanes) = high;
      for (int l = 0; l < side; ++l) y[l] = block::exponential(-y[l] / (2 * by_sigma.square));
      for (int64_t l = 0; l < count; ++l) {
        const int64_t i = (first + l) * classes + c;
        out[i] = Out(grad ? A(grad[i]) * y[l] : y[l]);
      }
    }
  }

  // Adds the terms of features first to first + some - 1.
  void add(const A* points, const T* centre, int64_t first, Vector& low, Vector& high) const {
    Vector low_part{}, high_part{};
    const int64_t end = tp::min(first + some, features);
    const auto* point = reinterpret_cast<const Vector*>(points + first * side);
    for (int64_t d = first; d < end; ++d, point += 2) {
      const A middle = A(centre[d]);
      const Vector a = (point[0] - middle) * by_sigma.half * by_sigma.rest;
      const Vector b = (point[1] - middle) * by_sigma.half * by_sigma.rest;
      low_part += a * a;
      high_part += b * b;
    }
    low += low_part;
    high += high_part;
  }

  void compute_all(Context& context) const {
    const int64_t cost = side * tp::max(classes * features, int64_t(1));
    context.parallel_for(ceil_div(rows, int64_t(side)), tp::max(gaussian_grain / cost, int64_t(1)),
                         [=, *this](int64_t begin, int64_t end) {
                           std::vector<A> space(static_cast<size_t>(side * features));
                           on_vectors([=, *this, points = space.data()] {
                             for (int64_t i = begin; i < end; ++i) compute(i * side, points);
                           });
                         });
  }
};

// The gradients of one side, n points, from their pairs with `others`.
template <class T>
struct Pulls {
  using A = acc_t<T>;
  const A* pull;
  int64_t i_stride, j_stride;
  const T *self, *other;
  int64_t n, others, features;
  BySigma<A> by_sigma;
  T* out;

  // As Pull in layers/rbf.h, for all coordinates of point i. `part` holds the sum of up to 256 terms, and `total` the
  // sum of such parts.
  void compute(int64_t i, A* part, A* total) const {
    const T* mine = self + i * features;
    for (int64_t d = 0; d < features; ++d) total[d] = 0;
    for (int64_t first = 0; first < others; first += 256) {
      for (int64_t d = 0; d < features; ++d) part[d] = 0;
      for (int64_t j = first; j < tp::min(others, first + 256); ++j) {
        const A weight = pull[i * i_stride + j * j_stride];
        if (weight == 0) continue;  // a weight of 0 adds nothing, even if the distance is infinite
        const T* theirs = other + j * features;
        TP_INDEPENDENT
        for (int64_t d = 0; d < features; ++d) part[d] += weight * by_sigma.scaled(A(theirs[d]) - A(mine[d]));
      }
      for (int64_t d = 0; d < features; ++d) total[d] += part[d];
    }
    for (int64_t d = 0; d < features; ++d) out[i * features + d] = T(by_sigma.scaled(total[d]) / by_sigma.square);
  }

  void compute_all(Context& context) const {
    const int64_t cost = tp::max(others * features, int64_t(1));
    context.parallel_for(n, tp::max(gaussian_grain / cost, int64_t(1)), [=, *this](int64_t begin, int64_t end) {
      std::vector<A> space(static_cast<size_t>(2 * features));
      on_vectors([=, *this, part = space.data(), total = space.data() + features] {
        for (int64_t i = begin; i < end; ++i) compute(i, part, total);
      });
    });
  }
};

template <class T>
void compute_rbf(const Args& a, Context& context) {
  using A = acc_t<T>;
  const BySigma<A> by_sigma(a.sigma);
  const int64_t n = a.rows, classes = a.columns, features = a.features;
  const T *x = as<T>(a.x), *centres = as<T>(a.y);
  if (a.step == Step::rbf) {
    return Gaussians<T, T>{x, centres, nullptr, as<T>(a.out), n, classes, features, by_sigma}.compute_all(context);
  }
  A* pull = context.workspace<A>(n * classes);
  Gaussians<T, A>{x, centres, as<T>(a.grad), pull, n, classes, features, by_sigma}.compute_all(context);
  Pulls<T>{pull, classes, 1, x, centres, n, classes, features, by_sigma, as<T>(a.out)}.compute_all(context);
  Pulls<T>{pull, 1, classes, centres, x, classes, n, features, by_sigma, as<T>(a.out_y)}.compute_all(context);
}

}  // namespace tp::layers::host
