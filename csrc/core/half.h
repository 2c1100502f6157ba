// Storage types whose arithmetic is done in other types: half and bfloat16 (computed in float) and boolean (any nonzero
// byte is true). The bits are those of torch's types. Conversions round to nearest even, on the host as on the device.
#pragma once
#include <cstring>

#include "core/macros.h"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace tp {
namespace detail {

TP_HD inline uint32_t float_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}

TP_HD inline float bits_float(uint32_t u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}

// Selects without a branch, so that the compiler can vectorize loops of conversions.
TP_HD inline uint32_t select(bool condition, uint32_t yes, uint32_t no) {
  return no ^ ((yes ^ no) & (0u - uint32_t(condition)));
}

TP_HD inline uint16_t float_to_half(float x) {
#ifdef __CUDA_ARCH__
  return __half_as_ushort(__float2half_rn(x));
#else
  const uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  // Subnormal: let the float adder round at bit 2^-24.
  const uint32_t subnormal = float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t finite = select(magnitude < 0x38800000u, subnormal, normal);
  const uint32_t other =
      select(magnitude > 0x7f800000u, 0x7e00u, 0x7c00u);  // NaN becomes a quiet NaN, everything else infinity
  return uint16_t(sign | select(magnitude >= 0x477ff000u, other, finite));
#endif
}

TP_HD inline float half_to_float(uint16_t h) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(h));
#else
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  const uint32_t subnormal = float_bits(float(int32_t(magnitude)) * (1.0f / 16777216.0f));  // multiples of 2^-24
  const uint32_t normal = (magnitude << 13) + select(magnitude >= 0x7c00u, 0x70000000u, 0x38000000u);
  return bits_float(sign | select(magnitude < 0x400u, subnormal, normal));
#endif
}

TP_HD inline uint16_t float_to_bfloat16(float x) {
#ifdef __CUDA_ARCH__
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
  const uint32_t u = float_bits(x);
  if (x != x) return uint16_t((u >> 16) | 0x40u);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
}

}  // namespace detail

struct half {
  uint16_t bits;
  half() = default;
  TP_HD half(float x) : bits(detail::float_to_half(x)) {}
  TP_HD operator float() const { return detail::half_to_float(bits); }
};

struct bfloat16 {
  uint16_t bits;
  bfloat16() = default;
  TP_HD bfloat16(float x) : bits(detail::float_to_bfloat16(x)) {}
  TP_HD operator float() const { return detail::bits_float(uint32_t(bits) << 16); }
};

struct boolean {
  uint8_t byte;
  boolean() = default;
  TP_HD boolean(bool x) : byte(x) {}
  TP_HD operator bool() const { return byte != 0; }
};

}  // namespace tp
