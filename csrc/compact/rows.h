// The rows of a compaction as words: the widest word of 1 to 16 bytes whose size divides a row and to which the
// addresses are aligned.
#pragma once
#include "compact/compact.h"
#include "core/simt.h"

namespace tp::compact {

struct alignas(16) Word16 {
  uint64_t low, high;
};

template <class Word_>
struct Rows {
  using Word = Word_;
  const boolean* mask;
  const Word* in;
  Word* out;
  int64_t *count, n, width, packed;  // width: words per row
  Word fill;

  explicit Rows(const Args& x)
      : mask(static_cast<const boolean*>(x.mask)),
        in(static_cast<const Word*>(x.in)),
        out(static_cast<Word*>(x.out)),
        count(x.count),
        n(x.n),
        width(x.row_bytes / int64_t(sizeof(Word))),
        packed(x.packed) {
    const uint64_t fills[] = {x.fill, x.fill};
    memcpy(&fill, fills, sizeof(Word));
  }
};

// Calls f(Rows<Word>) for the widest word. Rows without bytes are not moved, but still counted.
template <class F>
void with_rows(const Args& args, F f) {
  const uint64_t address =
      reinterpret_cast<uintptr_t>(args.in) | reinterpret_cast<uintptr_t>(args.out) | uint64_t(args.row_bytes);
  if (address % 16 == 0) return f(Rows<Word16>(args));
  if (address % 8 == 0) return f(Rows<uint64_t>(args));
  if (address % 4 == 0) return f(Rows<uint32_t>(args));
  if (address % 2 == 0) return f(Rows<uint16_t>(args));
  f(Rows<uint8_t>(args));
}

}  // namespace tp::compact
