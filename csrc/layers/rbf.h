// Gaussian outputs (§16.2): how near a sample is to the centre of each class.
#pragma once
#include "block/per_output.h"
#include "layers/layers.h"

namespace tp::layers {

// y[n, c] = exp(-|x[n] - centre[c]|^2 / (2 sigma^2)); with `grad`, grad * y / sigma^2: by how much to pull them
// together.
template <class T, class Out>
struct Gaussian {
  static constexpr const char* name = "rbf";
  const T *x, *centres, *grad;
  Out* out;
  int64_t samples, classes, features;
  double sigma;

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
          return difference * difference;
        });
        const A variance(sigma * sigma), y = std::exp(-squares / (2 * variance));
        to[n * classes + c] = Out(grad ? load<T>(g, n * classes + c) * y / variance : y);
      };
    };
  }
};

// grad[i, d] = sum over j of pull[i, j] * (other[j, d] - self[i, d]), where pull has the given strides.
template <class T>
struct Pull {
  static constexpr const char* name = "rbf_backward";
  const acc_t<T>* pull;
  int64_t i_stride, j_stride;
  const T *self, *other;
  T* out;
  int64_t n, others, features;

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
        to[i * features + d] = T(sum_of<A>(others, [&](int64_t j) {
          const A weight = pulls[i * i_stride + j * j_stride];
          return weight * (load<T>(theirs, j * features + d) - here);
        }));
      };
    };
  }
};

}  // namespace tp::layers
