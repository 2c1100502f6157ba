// Functions for x86 with AVX2, FMA and F16C, to be called only if has_avx2().
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define TP_WITH_AVX2
#define TP_AVX2 __attribute__((target("avx2,fma,f16c")))
#define TP_AVX2_INLINE TP_AVX2 __attribute__((always_inline)) inline

namespace tp::sparse {

inline bool has_avx2() {
  static const bool has =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return has;
}

}  // namespace tp::sparse
#endif
