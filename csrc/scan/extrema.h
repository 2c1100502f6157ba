// Running extrema with the positions at which they were first reached, in one pass.
#pragma once
#include "core/context.h"

namespace tp::scan {

struct ExtremaArgs {
  const void* in;  // [outer, n, inner]
  void* out;       // like in
  int64_t* index;  // like in: the position along n of the element in `out`, the first in the order of the scan
  int64_t outer, n, inner;
  DType dtype;
  bool least, reverse;  // minima instead of maxima; from the last element to the first
};

// Whether the rung has a pass of its own that carries indices. For other rungs, scans find the indices.
bool has_one_pass(const char* algorithm, bool cuda, int64_t elements);

// Whether a device scans lines where they lie. If their elements are not adjacent, this takes many lines, and many
// neighbours of each unless there are very many lines; others take less time if they are transposed before and after.
inline bool scanned_in_place(const ExtremaArgs& a) {
  constexpr int64_t many_lines = 256, many_neighbours = 16, very_many_lines = 1 << 14;
  const int64_t lines = a.outer * a.inner;
  return a.inner <= 1 || lines >= very_many_lines || (lines >= many_lines && a.inner >= many_neighbours);
}

// A NaN beats every number, and the first NaN stays. On a device, n must be less than 2^31.
void running_extrema(const ExtremaArgs& args, Context& context);
void running_extrema_on_device(const ExtremaArgs& args, Context& context);

}  // namespace tp::scan
