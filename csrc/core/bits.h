// Sets of small numbers as the bits of a word.
#pragma once
#include <cstdint>

#include "core/macros.h"

namespace tp {

TP_HD inline int count_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __popc(bits);
#else
  return __builtin_popcount(bits);
#endif
}

// The position of the lowest bit that is set; there must be one.
TP_HD inline int lowest_bit(uint64_t bits) {
#ifdef __CUDA_ARCH__
  return __ffsll(static_cast<long long>(bits)) - 1;
#else
  return __builtin_ctzll(bits);
#endif
}
TP_HD inline int lowest_bit(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __ffs(int(bits)) - 1;
#else
  return __builtin_ctz(bits);
#endif
}

}  // namespace tp
