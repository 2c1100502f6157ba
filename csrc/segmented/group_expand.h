// Expansion of groups on CUDA: every row of the result is the value of a group.
#pragma once
#include "segmented/segmented.h"

namespace tp::segmented {

// Row i of `out` is row index[i] of `in`, or zeros if there is no such row.
struct Expanded {
  const void* in;     // [groups, row_bytes]
  void* out;          // [n, row_bytes]
  const void* index;  // [n], int64 or int32
  bool long_index;
  int64_t n, groups, row_bytes;
};

void expand_groups(const Expanded&, Context&);

}  // namespace tp::segmented
