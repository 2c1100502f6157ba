// Conversions of arrays between storage types and those in which they are computed.
#pragma once
#include "block/on_vectors.h"
#include "core/dtype.h"

namespace tp {

// By the instructions of the processor, where it has them. The bits are those of core/half.h, but signalling NaNs
// become quiet.
void convert(int64_t n, const half* from, float* to);
void convert(int64_t n, const float* from, half* to);

// An unsigned integer of so many bytes.
template <int bytes>
using Bits =
    std::conditional_t<bytes == 8, uint64_t,
                       std::conditional_t<bytes == 4, uint32_t, std::conditional_t<bytes == 2, uint16_t, uint8_t>>>;

template <class From, class To>
void convert(int64_t n, const From* from, To* to) {
  TP_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) to[i] = To(from[i]);
}

// Up to `most` elements, in the accumulator's type.
template <class T, int64_t most>
struct Widened {
  acc_t<T> values[most];
  Widened(const T* from, int64_t n) { convert(n, from, values); }
};

// out[i] = value(i)
template <class T, class F>
void store(int64_t n, T* out, F value) {
  if constexpr (std::is_same<T, half>::value) {
    constexpr int64_t block = 512;
    float values[block];
    for (int64_t first = 0; first < n; first += block) {
      const int64_t count = tp::min(block, n - first);
      TP_INDEPENDENT
      for (int64_t i = 0; i < count; ++i) values[i] = value(first + i);
      convert(count, values, out + first);
    }
  } else {
    TP_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) out[i] = T(value(i));
  }
}

}  // namespace tp
