// The offsets of segments that are stored end to end: where a segment begins and ends, and which segment contains a
// row.
#pragma once
#include "core/simt.h"

namespace tp::block {

// The offsets as a kernel may use them, whatever they hold. Segments -1 and `segments` are the rows before the first
// offset and after the last one, which belong to no segment. Every row is in some segment from -1 to `segments`.
template <class Long, class Short>
struct BoundOffsets {
  Long longs;
  Short shorts;
  bool are_long, mirrored;
  int64_t segments, n;

  // Where segment i begins, within 0..n. A mirrored sequence counts rows and segments from the end.
  TP_HD int64_t begin(int64_t i) const {
    if (i < 0) return 0;
    if (i > segments) return n;
    return inside(i);
  }
  // The same for i from 0 to `segments`.
  TP_HD int64_t inside(int64_t i) const {
    if (mirrored) i = segments - i;
    const int64_t value = tp::max(int64_t(0), tp::min(n, given(i)));
    return mirrored ? n - value : value;
  }
  // Offset i as given.
  TP_HD int64_t given(int64_t i) const {
    if (are_long) {
      const int64_t offset = longs[i];
      return offset;
    }
    const int32_t offset = shorts[i];
    return offset;
  }
  TP_HD int64_t end(int64_t i) const { return tp::max(begin(i), begin(i + 1)); }
  TP_HD bool exists(int64_t i) const { return i >= 0 && i < segments; }
  // A segment from -1 to `segments` with begin(i) <= row < end(i); it is unique if offsets do not decrease.
  TP_HD int64_t find(int64_t row) const {
    int64_t low = 0, high = segments + 1;  // begin(low - 1) <= row < begin(high)
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (begin(middle) <= row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low - 1;
  }
};

struct Offsets {
  const int64_t* longs;
  const int32_t* shorts;
  bool are_long, mirrored;
  int64_t segments, n;

  Offsets(const void* offsets, bool are_long, int64_t segments, int64_t n, bool mirrored = false)
      : longs(static_cast<const int64_t*>(offsets)),
        shorts(static_cast<const int32_t*>(offsets)),
        are_long(are_long),
        mirrored(mirrored),
        segments(segments),
        n(n) {}

  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto as_long = block.global("offsets", are_long ? longs : nullptr, segments + 1);
    const auto as_short = block.global("short offsets", are_long ? nullptr : shorts, segments + 1);
    return BoundOffsets<std::decay_t<decltype(as_long)>, std::decay_t<decltype(as_short)>>{as_long,  as_short, are_long,
                                                                                           mirrored, segments, n};
  }
};

}  // namespace tp::block
