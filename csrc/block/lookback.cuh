// Look-back between blocks: each publishes a value once, others wait for it.
//
// A value travels as 8-byte words, each of 4 bytes of it and a flag. One such word is written and read whole, so a
// reader that sees the flag has the data, and no fence is needed. All cells are zero before the launch.
//
// A chain over `n` positions is looked up in two fixed levels, so that the order of combination depends on nothing but
// n and the bits are the same in every run: position i combines the values of its group's earlier members by a fixed
// tree and adds the prefix of all groups before, which the last member of each group hands on.
#pragma once
#include <cstring>

#include "core/macros.h"

namespace tp::block {

template <class T>
struct Cell {
  static constexpr int words = int(sizeof(T) + 3) / 4;
  uint64_t word[words];

  TP_DEVICE void publish(const T& value) {
    unsigned data[words] = {};
    memcpy(data, &value, sizeof(T));
#pragma unroll
    for (int i = 0; i < words; ++i) {
      const uint64_t flagged = uint64_t(1) << 32 | data[i];
      asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word + i), "l"(flagged) : "memory");
    }
  }

  TP_DEVICE T wait() const {
    unsigned data[words];
#pragma unroll
    for (int i = 0; i < words; ++i) {
      uint64_t seen;
      do {
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(word + i) : "memory");
      } while (seen >> 32 == 0);
      data[i] = unsigned(seen);
    }
    T value;
    memcpy(&value, data, sizeof(T));
    return value;
  }
};

}  // namespace tp::block
