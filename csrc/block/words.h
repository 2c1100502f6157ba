// Rows of bytes as words: the widest word of 1 to 16 bytes whose size divides a row and to which the addresses are
// aligned.
#pragma once
#include "core/dtype.h"

namespace tp::block {

struct alignas(16) Word16 {
  uint64_t low, high;
};

// Calls f(Type<Word>) for the widest word that fits both arrays and the bytes of a row.
template <class F>
void with_words(const void* in, const void* out, int64_t row_bytes, F f) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out) | uint64_t(row_bytes);
  if (bits % 16 == 0) return f(Type<Word16>{});
  if (bits % 8 == 0) return f(Type<uint64_t>{});
  if (bits % 4 == 0) return f(Type<uint32_t>{});
  if (bits % 2 == 0) return f(Type<uint16_t>{});
  f(Type<uint8_t>{});
}

}  // namespace tp::block
