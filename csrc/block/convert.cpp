#include "block/convert.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

namespace tp {
namespace {

template <class From, class To>
void one_by_one(int64_t n, const From* from, To* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = To(from[i]);
}

#if defined(__x86_64__) && defined(__GNUC__)
#define TP_F16C __attribute__((target("avx2,f16c")))

TP_F16C __m256 widened(const half* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
TP_F16C void widen(int64_t n, const half* from, float* to) {
  int64_t i = 0;
#pragma GCC unroll 4  // so short a loop would take 1.4 times as long at some addresses of its instructions (Zen 4)
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, widened(from + i));
  for (; i < n; ++i) to[i] = _cvtsh_ss(from[i].bits);
}

TP_F16C __m128i narrowed(__m256 x) {  // NaN becomes 0x7e00 with its sign, as in core/half.h
  const __m256 sign_and_nan =
      _mm256_or_ps(_mm256_and_ps(x, _mm256_set1_ps(-0.0f)), _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)));
  return _mm256_cvtps_ph(_mm256_blendv_ps(x, sign_and_nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)),
                         _MM_FROUND_TO_NEAREST_INT);
}
TP_F16C void narrow(int64_t n, const float* from, half* to) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), narrowed(_mm256_loadu_ps(from + i)));
  for (; i < n; ++i) to[i].bits = uint16_t(_mm_extract_epi16(narrowed(_mm256_set1_ps(from[i])), 0));
}

bool has_f16c() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return has;
}
#else
constexpr bool has_f16c() { return false; }
constexpr auto widen = one_by_one<half, float>;
constexpr auto narrow = one_by_one<float, half>;
#endif

}  // namespace

void convert(int64_t n, const half* from, float* to) { has_f16c() ? widen(n, from, to) : one_by_one(n, from, to); }
void convert(int64_t n, const float* from, half* to) { has_f16c() ? narrow(n, from, to) : one_by_one(n, from, to); }

}  // namespace tp
