// Subsampling and pooling (PMPP §16.2, Fig. 16.7; exercise 16.1): each output pixel summarizes a window of an input
// map.
//
// The subsampling layer of LeNet-5 takes the mean of the window, adds the map's bias and applies a sigmoid. Average
// pooling is the same layer without bias and activation, but its windows may overlap, extend into the padding, or (if
// the output's size is rounded up) extend past the far edge. Maximum pooling takes the greatest pixel instead, and
// remembers its index: the gradient goes to that pixel.
//
// The backward computations are gathers, too: an input pixel visits the windows that cover it. So every output of every
// step is one independent computation, and the rungs are ways to run such computations (block/per_output.h).
#pragma once
#include "block/activation.h"
#include "core/ladder.h"

namespace tp::pooling {

// average: the activation of the window's mean plus the bias. maximum_tangent: x at `indices`, which is the derivative
// of maximum in the direction x; the gradient of maximum's gradient is made of it, too.
enum class Step : int8_t { average, average_backward, maximum, maximum_backward, maximum_tangent };

// A batch of maps, [outer, h, w, inner]: outer = batch * maps with inner = 1, or (channels last) outer = batch, inner =
// maps.
struct Maps {
  int64_t outer, h, w, inner;
  TP_HD int64_t size() const { return outer * h * w * inner; }
};

// How windows lie along one dimension of the maps.
struct Axis {
  int64_t size, outputs, kernel, stride, padding, dilation;
  TP_HD int64_t reach() const { return (kernel - 1) * dilation + 1; }
};

struct Args {
  Step step;
  DType dtype;
  Maps in, out;  // the maps on both sides of the forward computation
  Axis h, w;
  bool count_include_pad;
  Activation activation;
  int64_t maps;  // subsampling: the number of biases; else 0

  const void* x;     // like `in`; for average, maximum and maximum_tangent
  const void* bias;  // [maps] or null; for average
  // Like `out`: the result of average, maximum and maximum_tangent, and an argument of subsampling's average_backward.
  void* y;
  void* indices;     // like `out`, h * W + w: result of maximum, argument of maximum_backward and maximum_tangent
  bool long_index;   // whether the indices are int64_t; else int32_t
  const void* grad;  // like `out`; for average_backward and maximum_backward
  void* grad_x;      // like `in`
  void* grad_bias;   // [maps]
};

// Calls `call` with the indices as a pointer of their type.
template <class Call>
void with_indices(const Args& a, Call call) {
  a.long_index ? call(static_cast<int64_t*>(a.indices)) : call(static_cast<int32_t*>(a.indices));
}

#define TP_RUNGS "pooling/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::pooling
