// Subsampling and pooling (PMPP §16.2, Fig. 16.7; exercise 16.1): each output pixel summarizes a window of an input
// map.
//
// The subsampling layer of LeNet-5 takes the mean of the window, adds the map's bias and applies a sigmoid. Average
// pooling is the same layer without bias and activation, and with windows that may overlap, reach into a border of
// padding, or (with a ceiling in the formula of the output's size) over the far edge. Maximum pooling takes the
// greatest pixel instead, and remembers which it was: its gradient goes there.
//
// The backward computations are gathers, too: an input pixel looks at the windows that cover it. So one output is one
// computation everywhere, and the rungs are the ways to run those (block/per_output.h).
#pragma once
#include "block/activation.h"
#include "core/ladder.h"

namespace tp::pooling {

// average: mean of the window, plus bias, through the activation.     maximum_tangent: x at `indices`, the derivative
// of maximum in a direction x, and what the gradient of its gradient is made of.
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

  const void* x;     // like `in`: average, maximum, maximum_tangent
  const void* bias;  // [maps] or null: average
  void* y;        // like `out`: result of average, maximum, maximum_tangent; subsampling: argument of average_backward
  void* indices;  // like `out`, h * W + w: result of maximum, argument of maximum_backward and maximum_tangent
  bool long_index;   // whether those are int64_t, or int32_t
  const void* grad;  // like `out`: average_backward, maximum_backward
  void* grad_x;      // like `in`
  void* grad_bias;   // [maps]
};

// call(indices, as a pointer of their type)
template <class Call>
void with_indices(const Args& a, Call call) {
  a.long_index ? call(static_cast<int64_t*>(a.indices)) : call(static_cast<int32_t*>(a.indices));
}

#define TP_RUNGS "pooling/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::pooling
