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

  // What is there now, by words; `flagged` turns false where one is missing.
  TP_DEVICE T peek(bool& flagged) const {
    unsigned data[words];
#pragma unroll
    for (int i = 0; i < words; ++i) {
      uint64_t seen;
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(word + i) : "memory");
      flagged = flagged && seen >> 32 != 0;
      data[i] = unsigned(seen);
    }
    T value;
    memcpy(&value, data, sizeof(T));
    return value;
  }

  TP_DEVICE T wait() const {
    for (;;) {
      bool flagged = true;
      const T value = peek(flagged);
      if (flagged) return value;
    }
  }
};

// Combines cells[0] to cells[n - 1], in order, n at most `most`: all are asked for at once, until all have been
// published.
template <class M, int most>
TP_DEVICE typename M::Acc wait_all(const Cell<typename M::Acc>* cells, int n) {
  for (;;) {
    typename M::Acc value[most], sum = M::identity();
    bool flagged = true;
#pragma unroll
    for (int i = 0; i < most; ++i) value[i] = i < n ? cells[i].peek(flagged) : M::identity();
    if (!flagged) continue;
#pragma unroll
    for (int i = 0; i < most; ++i) sum = M::combine(sum, value[i]);
    return sum;
  }
}

}  // namespace tp::block
