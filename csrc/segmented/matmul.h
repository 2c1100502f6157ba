// Multiplies each segment of rows by its own matrix: layers with one matrix per expert, relation or node type.
//
// x is [n, inner], and segment s consists of its rows offsets[s] to offsets[s + 1] - 1. `product` computes the rows x_s
// W_s for weights W [segments, inner, cols]; `outer` computes the gradient of the weights, x_s^T g_s for rows g [n,
// cols].
#pragma once
#include <functional>

#include "core/ladder.h"

namespace tp::segment_matmul {

struct Args {
  bool outer;
  const void* x;                                  // [n, inner]
  const void* other;                              // product: [segments, inner, cols]; outer: [n, cols]
  void* out;                                      // product: [n, cols]; outer: [segments, inner, cols]
  const int64_t* offsets;                         // [segments + 1], on the device, with any values
  std::function<const int64_t*()> valid_offsets;  // waits for them: on the host, in 0 to n and not decreasing
  int64_t n, inner, cols, segments;
  DType dtype;  // a floating-point dtype
};

#define TP_RUNGS "segmented/rungs_matmul.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::segment_matmul
