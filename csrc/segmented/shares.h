// Equal shares of rows and segment ends for host threads. The end of each segment counts as one more item after its
// last row, and the n + segments items are divided into shares of `size`. So neither one huge segment nor a million
// empty ones makes a share longer. The division depends only on the offsets, so joining the shares in order gives the
// same bits in every run. Offsets must be valid.
#pragma once
#include "segmented/elements.h"

namespace tp::segmented {

template <class O>
struct Shares {
  O offsets;
  int64_t size;

  // Where segment i begins.
  int64_t border(int64_t i) const {
    return offsets.mirrored ? offsets.n - offsets.given(offsets.segments - i) : offsets.given(i);
  }
  int64_t items() const { return offsets.n + offsets.segments; }
  int64_t count() const { return ceil_div(items(), size); }
  // The segment that is open at the beginning of share i; its number is that of segments that end before.
  int64_t first(int64_t i) const {
    const int64_t item = tp::min(i * size, items());
    int64_t low = 0, high = offsets.segments;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (border(middle + 1) + middle < item) {  // the end of `middle` comes before this item
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  // Calls f(segment, begin, end) for the rows of each segment that ends in share i, and finally for those of the
  // segment that remains open.
  template <class F>
  void each(int64_t i, F f) const {
    const int64_t last = first(i + 1), stop = tp::min((i + 1) * size, items()) - last;
    int64_t segment = first(i), row = i * size - segment;
    for (; segment < last; ++segment) {
      const int64_t end = border(segment + 1);
      f(segment, row, end);
      row = end;
    }
    f(last, row, stop);
  }
};

}  // namespace tp::segmented
