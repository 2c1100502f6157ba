// Gaussian outputs (§16.2): how close a sample is to the centre of each class.
#pragma once
#include "block/per_output.h"
#include "layers/layers.h"

namespace tp::layers {

// Divides by sigma = mantissa * 2^exponent. The division by the power of two is exact, and is done in two steps, so
// that no factor leaves the range of A whatever sigma is; the division by the mantissa follows at the end. sigma^2 and
// 1 / sigma are never computed, because they can overflow even if the result does not. Exponents that are clamped would
// take every number of A to 0 or to infinity anyway.
template <class A>
struct BySigma {
  A half, rest, square;  // 2^-exponent = half * rest; mantissa^2

  explicit BySigma(double sigma) {
    constexpr int most = 2 * (std::numeric_limits<A>::max_exponent - 2);
    int exponent = most;
    double mantissa = 1;
    if (std::isfinite(sigma)) mantissa = std::frexp(sigma, &exponent);
    exponent = tp::max(-most, tp::min(exponent, most));
    half = A(std::ldexp(1.0, -exponent / 2));
    rest = A(std::ldexp(1.0, -exponent + exponent / 2));
    square = A(mantissa * mantissa);
  }
  TP_HD A scaled(A x) const { return x * half * rest; }  // divides by the power of two
};

// y[n, c] = exp(-|x[n] - centre[c]|^2 / (2 sigma^2)); with `grad`, grad * y, the weight of the pair in both gradients.
template <class T, class Out>
struct Gaussian {
  static constexpr const char* name = "rbf";
  const T *x, *centres, *grad;
  Out* out;
  int64_t samples, classes, features;
  BySigma<acc_t<T>> by_sigma;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto points = block.global("x", x, samples * features);
    const auto middles = block.global("centres", centres, classes * features);
    const auto g = block.global("grad", grad, samples * classes);
    const auto to = block.global("y", out, samples * classes);
    return [=, *this](int64_t n) {
      return [=, *this](int64_t c) {
        using A = acc_t<T>;
        const A squares = sum_of<A>(features, [&](int64_t d) {
          const A difference = load<T>(points, n * features + d) - load<T>(middles, c * features + d);
          const A scaled = by_sigma.scaled(difference);
          return scaled * scaled;
        });
        const A y = std::exp(-squares / (2 * by_sigma.square));
        to[n * classes + c] = Out(grad ? load<T>(g, n * classes + c) * y : y);
      };
    };
  }
};

// grad[i, d] = sum over j of pull[i, j] * (other[j, d] - self[i, d]) / sigma^2; pull has the given strides. A point
// whose pull is 0 adds nothing, even if its distance is infinite.
template <class T>
struct Pull {
  static constexpr const char* name = "rbf_backward";
  const acc_t<T>* pull;
  int64_t i_stride, j_stride;
  const T *self, *other;
  T* out;
  int64_t n, others, features;
  BySigma<acc_t<T>> by_sigma;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto pulls = block.global("pull", pull, n * others);
    const auto mine = block.global("self", self, n * features);
    const auto theirs = block.global("other", other, others * features);
    const auto to = block.global("grad", out, n * features);
    return [=, *this](int64_t i) {
      return [=, *this](int64_t d) {
        using A = acc_t<T>;
        const A here = load<T>(mine, i * features + d);
        const A sum = sum_of<A>(others, [&](int64_t j) {
          const A weight = pulls[i * i_stride + j * j_stride];
          return weight == 0 ? A(0) : weight * by_sigma.scaled(load<T>(theirs, j * features + d) - here);
        });
        to[i * features + d] = T(by_sigma.scaled(sum) / by_sigma.square);
      };
    };
  }
};

}  // namespace tp::layers
