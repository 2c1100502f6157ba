// Division of indices.
#pragma once
#include "core/macros.h"

namespace tp {

// a / b for numbers that are not negative. If both fit in 32 bits it divides in 32 bits, because a 64-bit division is a
// long subroutine on a device.
TP_HD inline int64_t quotient(int64_t a, int64_t b) {
  return ((a | b) >> 32) == 0 ? int64_t(uint32_t(a) / uint32_t(b)) : a / b;
}

}  // namespace tp
