// The activation functions of chapter 16, and their derivatives as functions of their own values.
#pragma once
#include <cmath>
#include <cstdint>

#include "block/exponential.h"
#include "block/per_output.h"

namespace tp {

enum class Activation : int8_t { identity, bipolar_sigmoid, tanh, relu, sign };

constexpr const char* activation_names[] = {"identity", "bipolar_sigmoid", "tanh", "relu", "sign"};

namespace detail {

// tanh |x| = e / (e + 2) with e = exp(2|x|) - 1. There is no branch, so that loops over it are vectorized. e keeps its
// relative precision near 0: with 2|x| = n ln 2 + r, e = 2^n (exp(r) - 1) + (2^n - 1), where exp(r) - 1 is computed as
// a power series.
TP_HD inline float tanh(float x) {
  const uint32_t magnitude = float_bits(2 * x) & 0x7fffffffu, nan = 0u - uint32_t(magnitude > 0x7f800000u);
  const float z = bits_float(tp::min(magnitude, 0x41a00000u) | nan);  // |2x|, at most 20, where tanh rounds to 1
  const float rounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits
  const float shifted = z * 1.44269504f + rounder, n = shifted - rounder;
  const float r = z - n * 0.693359375f + n * 2.12194440e-4f;  // ln 2 in two parts: the first product is exact
  const float series =
      r * (1 + r * (1 / 2.f + r * (1 / 6.f + r * (1 / 24.f + r * (1 / 120.f + r * (1 / 720.f + r * (1 / 5040.f)))))));
  const float power = bits_float((float_bits(shifted) + 127) << 23);
  const float e = power * series + (power - 1);
  return copysignf(e / (e + 2), x);
}

// As for float. CUDA's own function is as fast there.
TP_HD inline double tanh(double x) {
#ifdef __CUDA_ARCH__
  return ::tanh(x);
#else
  const auto bits_of = [](double value) {
    int64_t bits;
    memcpy(&bits, &value, 8);
    return bits;
  };
  const auto of_bits = [](int64_t bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
  };
  const int64_t magnitude = bits_of(2 * x) & INT64_MAX, most = 0x4044000000000000;  // 40, where tanh rounds to 1
  const int64_t nan = -int64_t(magnitude > 0x7ff0000000000000), over = -int64_t(magnitude > most);
  const double z = of_bits((magnitude ^ ((magnitude ^ most) & over)) | nan);
  const double rounder = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = z * 1.4426950408889634 + rounder, n = shifted - rounder;
  const double r = z - n * 0.693147180369123816490 - n * 1.90821492927058770002e-10;
  const double series = block::exponential_tail(r) * r * r + r;
  const double power = of_bits(int64_t(uint64_t(bits_of(shifted) + 1023) << 52));
  const double e = power * series + (power - 1);
  return ::copysign(e / (e + 2), x);
#endif
}

}  // namespace detail

// y = f(x); NaN stays NaN.
template <Activation f, class A>
TP_HD A activate(A x) {
  if constexpr (f == Activation::bipolar_sigmoid) return detail::tanh(x / 2);  // (1 - e^-x) / (1 + e^-x)
  if constexpr (f == Activation::tanh) return detail::tanh(x);
  if constexpr (f == Activation::relu) return x < 0 ? A(0) : x;
  if constexpr (f == Activation::sign) return x > 0 ? A(1) : x < 0 ? A(-1) : x;
  return x;
}

// Returns grad * f'(x), where f(x) is y. The derivative is 0 for sign, and for relu at 0.
template <Activation f, class A>
TP_HD A activate_backward(A grad, A y) {
  if constexpr (f == Activation::bipolar_sigmoid) return grad * (1 - y * y) / 2;
  if constexpr (f == Activation::tanh) return grad * (1 - y * y);
  if constexpr (f == Activation::relu) return y <= 0 ? A(0) : grad;
  if constexpr (f == Activation::sign) return A(0);
  return grad;
}

// As activate, for a function that is known only at run time; a branch per call costs less than one kernel per
// function.
template <class A>
TP_HD A activate(Activation f, A x) {
  if (f == Activation::bipolar_sigmoid || f == Activation::tanh) {
    return detail::tanh(f == Activation::tanh ? x : x / 2);
  }
  if (f == Activation::relu) return activate<Activation::relu>(x);
  return f == Activation::sign ? activate<Activation::sign>(x) : x;
}
template <class A>
TP_HD A activate_backward(Activation f, A grad, A y) {
  if (f == Activation::bipolar_sigmoid) return activate_backward<Activation::bipolar_sigmoid>(grad, y);
  if (f == Activation::tanh) return activate_backward<Activation::tanh>(grad, y);
  if (f == Activation::relu) return activate_backward<Activation::relu>(grad, y);
  return f == Activation::sign ? A(0) : grad;
}

template <Activation f>
using ActivationConstant = std::integral_constant<Activation, f>;

// Calls call(ActivationConstant<f>{}).
template <class Call>
void with_activation(Activation f, Call call) {
  switch (f) {
    case Activation::identity:
      return call(ActivationConstant<Activation::identity>{});
    case Activation::bipolar_sigmoid:
      return call(ActivationConstant<Activation::bipolar_sigmoid>{});
    case Activation::tanh:
      return call(ActivationConstant<Activation::tanh>{});
    case Activation::relu:
      return call(ActivationConstant<Activation::relu>{});
    case Activation::sign:
      return call(ActivationConstant<Activation::sign>{});
  }
}

// y = f(x) for every element.
template <Activation f, class T, class Out>
struct Activate {
  static constexpr const char* name = "activation";
  const T* x;
  Out* y;
  int64_t n;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto from = block.global("x", x, n);
    const auto to = block.global("y", y, n);
    return [=](int64_t) { return [=](int64_t i) { to[i] = Out(activate<f>(load<T>(from, i))); }; };
  }
};

template <Activation f, class T, class Out>
struct ActivateBackward {
  static constexpr const char* name = "activation_backward";
  const T *grad, *y;
  Out* out;
  int64_t n;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto from = block.global("grad", grad, n);
    const auto value = block.global("y", y, n);
    const auto to = block.global("out", out, n);
    return [=](int64_t) {
      return [=](int64_t i) { to[i] = Out(activate_backward<f>(load<T>(from, i), load<T>(value, i))); };
    };
  }
};

}  // namespace tp
