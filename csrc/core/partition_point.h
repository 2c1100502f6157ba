// Binary search.
#pragma once
#include "core/macros.h"

namespace tp {

// Returns lo plus the number of leading elements of lo..hi for which before(i) holds; before() must be true up to some
// i and false from there on. Even if it is not, the search ends with a result in lo..hi.
template <class I, class Before>
TP_HD I partition_point(I lo, I hi, Before before) {
  while (lo < hi) {
    const I middle = lo + (hi - lo) / 2;
    if (before(middle)) {
      lo = middle + 1;
    } else {
      hi = middle;
    }
  }
  return lo;
}

}  // namespace tp
