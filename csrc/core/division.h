// Division of indices.
#pragma once
#include "core/macros.h"

namespace tp {

// a / b of numbers that are not negative, by 32 bits where these hold both: on a device, a division of 64 bits is a
// long subroutine.
TP_HD inline int64_t quotient(int64_t a, int64_t b) {
  return ((a | b) >> 32) == 0 ? int64_t(uint32_t(a) / uint32_t(b)) : a / b;
}

}  // namespace tp
