// Products of segments of rows with a matrix each: layers of experts, of relations, of node types.
//
// x is [n, inner] and segment s its rows offsets[s] to offsets[s + 1] - 1. A product gives rows x_s W_s for weights W
// of [segments, inner, cols]; what its gradient by the weights needs is `outer`, x_s^T g_s for rows g of [n, cols].
#pragma once
#include "core/ladder.h"

namespace tp::segment_matmul {

struct Args {
  bool outer;
  const void* x;           // [n, inner]
  const void* other;       // product: [segments, inner, cols]; outer: [n, cols]
  void* out;               // product: [n, cols]; outer: [segments, inner, cols]
  const int64_t* offsets;  // [segments + 1], on the host: in 0 to n, not decreasing
  int64_t n, inner, cols, segments;
  DType dtype;  // a float
};

#define TP_RUNGS "segmented/rungs_matmul.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::segment_matmul
