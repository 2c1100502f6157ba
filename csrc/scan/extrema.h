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

// On a device, with so many lines each is scanned by one thread if its elements are not adjacent. Fewer lines take less
// time if they are transposed before and after.
constexpr int64_t enough_lines = 1 << 14;

// A NaN beats every number, and the first NaN stays. On a device, n must be less than 2^31.
void running_extrema(const ExtremaArgs& args, Context& context);
void running_extrema_on_device(const ExtremaArgs& args, Context& context);

}  // namespace tp::scan
