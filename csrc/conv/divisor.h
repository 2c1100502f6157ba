// Division by a number that is known when a kernel is launched, as a multiplication and a shift, because the hardware
// has no integer division.
#pragma once
#include "core/macros.h"

namespace tp::conv {

// Dividends and divisors must be smaller than dividend_limit. Let p = 31 + ceil(log2 d) and m = ceil(2^p / d). Then
// floor(n / d) = floor(n m / 2^p) for every n < 2^31, because m exceeds 2^p / d by less than 1, and so n m / 2^p
// exceeds n / d by less than n / 2^p < 1 / d.
constexpr int64_t dividend_limit = int64_t(1) << 30;

struct Divisor {
  unsigned value, multiplier = 0, shift = 0;

  explicit Divisor(int64_t d) : value(unsigned(d)) {
    if (d == 1) return;
    unsigned log = 0;
    while ((int64_t(1) << log) < d) ++log;
    multiplier = unsigned(((uint64_t(1) << (31 + log)) + uint64_t(d) - 1) / uint64_t(d));
    shift = log - 1;
  }
#ifdef __CUDACC__
  // Returns n / d and sets n to n % d.
  TP_DEVICE int divide(int& n) const {
    const int quotient = value == 1 ? n : int(__umulhi(unsigned(n), multiplier) >> shift);
    n -= quotient * int(value);
    return quotient;
  }
#endif
};

}  // namespace tp::conv
