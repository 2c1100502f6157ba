// Storage types whose arithmetic happens elsewhere: half and bfloat16 (computed in float) and boolean (any nonzero byte
// is true). The bits are those of torch's types; the conversions round to nearest even, on the host as on the device.
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

TP_HD inline uint16_t float_to_half(float x) {
#ifdef __CUDA_ARCH__
  return __half_as_ushort(__float2half_rn(x));
#else
  const uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);   // NaN stays quiet
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // rounds to infinity
  if (magnitude < 0x38800000u) {                                  // subnormal: let the float adder round at bit 2^-24
    const float aligned = bits_float(magnitude) + 0.5f;
    return uint16_t(sign | (float_bits(aligned) - 0x3f000000u));
  }
  return uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
#endif
}

TP_HD inline float half_to_float(uint16_t h) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(h));
#else
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u) return bits_float(sign | ((magnitude << 13) + 0x38000000u));
  const float scaled = float(magnitude) * (1.0f / 16777216.0f);  // subnormal: multiples of 2^-24
  return bits_float(sign | float_bits(scaled));
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
