// exp(x) for x <= 0. On the host it has neither branches nor calls, so loops over it are vectorized.
#pragma once
#include <cmath>

#include "core/half.h"

namespace tp::block {

// With x = n ln 2 + r and |r| <= ln 2 / 2, exp(x) = 2^n exp(r). ln 2 is subtracted in two parts; the product of n and
// the first part is exact. exp(r) is its series, truncated below half a unit in the last place. The error is less than
// two units in the last place; on CUDA, in float, it is 2 + 1.2 |x| units, as much as rounding an argument of this size
// causes. Results below the smallest normal number are rounded once more; on CUDA, in float, they are 0. NaN stays NaN.
TP_HD inline float exponential(float x) {
#ifdef __CUDA_ARCH__
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
  return power;
#else
  const float rounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits
  const float shifted = x * 1.44269504f + rounder, n = shifted - rounder;
  const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  // 2^n as a product of two normal factors. The second is 1 unless the result is subnormal.
  const int exponent = int(tp::detail::float_bits(shifted) - 0x4b400000u), normal = exponent < -126 ? -126 : exponent;
  const float power = tp::detail::bits_float(uint32_t(normal + 127) << 23);
  const float rest = tp::detail::bits_float(uint32_t(exponent - normal + 127) << 23);
  const float series =
      1 +
      r * (1 + r * (1 / 2.f + r * (1 / 6.f + r * (1 / 24.f + r * (1 / 120.f + r * (1 / 720.f + r * (1 / 5040.f)))))));
  // A selection of bits is not a branch. x is kept if it is between -104 and 0, or NaN.
  const uint32_t magnitude = tp::detail::float_bits(x) & 0x7fffffffu;
  const bool keeps = (magnitude <= 0x42d00000u) | (magnitude > 0x7f800000u);
  return tp::detail::bits_float(tp::detail::float_bits(power * series * rest) & (0u - uint32_t(keeps)));
#endif
}

// 1/2! + r/3! + r^2/4! + ..., which is (exp(r) - 1 - r) / r^2, for |r| <= ln 2 / 2.
TP_HD inline double exponential_tail(double r) {
  double tail = r * (1 / 87178291200.0) + 1 / 6227020800.0;  // 1/14!, 1/13!
  tail = tail * r + 1 / 479001600.0;
  tail = tail * r + 1 / 39916800.0;
  tail = tail * r + 1 / 3628800.0;
  tail = tail * r + 1 / 362880.0;
  tail = tail * r + 1 / 40320.0;
  tail = tail * r + 1 / 5040.0;
  tail = tail * r + 1 / 720.0;
  tail = tail * r + 1 / 120.0;
  tail = tail * r + 1 / 24.0;
  tail = tail * r + 1 / 6.0;
  tail = tail * r + 1 / 2.0;
  return tail;
}

TP_HD inline double exponential(double x) {
#ifdef __CUDA_ARCH__
  return exp(x);
#else
  const double rounder = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = x * 1.4426950408889634 + rounder, n = shifted - rounder;
  const double r = x - n * 0.693147180369123816490 - n * 1.90821492927058770002e-10;
  int64_t exponent;
  memcpy(&exponent, &shifted, 8);
  exponent -= 0x4338000000000000;
  const int64_t normal = exponent < -1022 ? -1022 : exponent;
  uint64_t bits = uint64_t(normal + 1023) << 52;
  double power, rest;
  memcpy(&power, &bits, 8);
  bits = uint64_t(exponent - normal + 1023) << 52;
  memcpy(&rest, &bits, 8);
  const double series = (exponential_tail(r) * r + 1) * r + 1;
  double result = power * series * rest;
  uint64_t magnitude;  // a selection of bits is not a branch: x is kept if it is between -746 and 0, or NaN
  memcpy(&magnitude, &x, 8);
  magnitude &= 0x7fffffffffffffffu;
  const bool keeps = (int64_t(magnitude) <= 0x4087500000000000) | (int64_t(magnitude) > 0x7ff0000000000000);
  memcpy(&bits, &result, 8);
  bits &= uint64_t(0) - uint64_t(keeps);
  memcpy(&result, &bits, 8);
  return result;
#endif
}

}  // namespace tp::block
