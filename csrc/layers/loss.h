// Losses per element or sample, and their gradients.
#pragma once
#include "block/per_output.h"
#include "layers/layers.h"

namespace tp::layers {

// The gradients of n losses that are reduced to one.
template <class T, class Array>
TP_HD acc_t<T> grad_of(const Array& grad, Reduction reduction, int64_t n, int64_t i) {
  if (reduction == Reduction::none) return load<T>(grad, i);
  return load<T>(grad, 0) / acc_t<T>(reduction == Reduction::mean ? n : 1);
}

template <bool squared, class T, class Out>
struct Error {
  static constexpr const char* name = squared ? "squared_error" : "absolute_error";
  const T *y, *t;
  Out* out;
  int64_t n;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto value = block.global("y", y, n);
    const auto wanted = block.global("t", t, n);
    const auto to = block.global("loss", out, n);
    return [=](int64_t) {
      return [=](int64_t i) {
        const acc_t<T> d = load<T>(value, i) - load<T>(wanted, i);
        to[i] = Out(squared ? d * d / 2 : d < 0 ? -d : d);
      };
    };
  }
};

template <bool squared, class T>
struct ErrorBackward {
  static constexpr const char* name = squared ? "squared_error_backward" : "absolute_error_backward";
  const T *y, *t, *grad;
  T* out;
  int64_t n;
  Reduction reduction;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto value = block.global("y", y, n);
    const auto wanted = block.global("t", t, n);
    const auto g = block.global("grad", grad, reduction == Reduction::none ? n : 1);
    const auto to = block.global("grad_y", out, n);
    return [=, *this](int64_t) {
      return [=, *this](int64_t i) {
        const acc_t<T> d = load<T>(value, i) - load<T>(wanted, i);
        to[i] = T(grad_of<T>(g, reduction, n, i) * (squared ? d : activate<Activation::sign>(d)));
      };
    };
  }
};

// log softmax(x)[c] = (x[c] - max) - log_sum. No exponential overflows, and large logits cancel before anything else is
// added.
template <class A>
struct Norm {
  A max, log_sum;
};

template <class T, class Array>
TP_HD Norm<acc_t<T>> norm_of(const Array& x, int64_t first, int64_t classes) {
  using A = acc_t<T>;
  A greatest = Max<A>::identity();
  for (int64_t c = 0; c < classes; ++c) greatest = Max<A>::combine(greatest, load<T>(x, first + c));
  const A sum = sum_of<A>(classes, [&](int64_t c) { return std::exp(load<T>(x, first + c) - greatest); });
  return {greatest, std::log(sum)};
}

// The loss of a sample; NaN if its label is not a class.
template <class T, class Out>
struct CrossEntropy {
  static constexpr const char* name = "cross_entropy";
  const T* x;
  const int64_t* target;
  Out* out;
  int64_t samples, classes;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto logits = block.global("logits", x, samples * classes);
    const auto labels = block.global("target", target, samples);
    const auto to = block.global("loss", out, samples);
    return [=, *this](int64_t n) {
      return [=, *this](int64_t) {
        using A = acc_t<T>;
        const int64_t label = labels[n];
        A loss = std::numeric_limits<A>::quiet_NaN();
        if (label >= 0 && label < classes) {
          const Norm<A> norm = norm_of<T>(logits, n * classes, classes);
          loss = norm.log_sum - (load<T>(logits, n * classes + label) - norm.max);
        }
        to[n] = Out(loss);
      };
    };
  }
};

template <class T>
struct SoftmaxNorm {
  static constexpr const char* name = "softmax_norm";
  const T* x;
  acc_t<T>*max, *log_sum;
  int64_t samples, classes;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto logits = block.global("logits", x, samples * classes);
    const auto to_max = block.global("max", max, samples);
    const auto to_log_sum = block.global("log_sum", log_sum, samples);
    return [=, *this](int64_t n) {
      return [=, *this](int64_t) {
        const Norm<acc_t<T>> norm = norm_of<T>(logits, n * classes, classes);
        to_max[n] = norm.max;
        to_log_sum[n] = norm.log_sum;
      };
    };
  }
};

// (softmax(x) - one_hot(target)) * grad; the gradient is 0 if the label is not a class.
template <class T>
struct CrossEntropyBackward {
  static constexpr const char* name = "cross_entropy_backward";
  const T *x, *grad;
  const int64_t* target;
  const acc_t<T>*max, *log_sum;
  T* out;
  int64_t samples, classes;
  Reduction reduction;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto logits = block.global("logits", x, samples * classes);
    const auto labels = block.global("target", target, samples);
    const auto maxima = block.global("max", max, samples);
    const auto log_sums = block.global("log_sum", log_sum, samples);
    const auto g = block.global("grad", grad, reduction == Reduction::none ? samples : 1);
    const auto to = block.global("grad_logits", out, samples * classes);
    return [=, *this](int64_t n) {
      using A = acc_t<T>;
      const int64_t label = labels[n];
      const bool valid = label >= 0 && label < classes;
      const A greatest = maxima[n], sum = log_sums[n], scale = grad_of<T>(g, reduction, samples, n);
      return [=, *this](int64_t c) {
        const A p = std::exp(load<T>(logits, n * classes + c) - greatest - sum);
        to[n * classes + c] = T(valid ? (p - A(c == label)) * scale : A(0));
      };
    };
  }
};

}  // namespace tp::layers
