// Shared by the pooling operators: the windows that their arguments describe, and the number of windows in a map.
#pragma once
#include <ATen/ATen.h>

#include "pooling/pooling.h"
#include "torch/checks.h"

namespace tp {

using SymPair = std::array<SymInt, 2>;  // along h and w

struct Windows {
  SymPair kernel, stride, padding, dilation;
  bool ceil_mode = false, count_include_pad = true;
};

// An argument that may be one number for both dimensions, or omitted.
SymPair pair(const char* op, const char* name, SymIntArrayRef values, SymIntArrayRef otherwise = {});

// Refuses all shapes except [N, C, H, W] and [C, H, W]; only the batch may be empty.
void check_maps(const char* op, const char* name, const Tensor& x);

// The numbers of windows on maps of this size; refuses invalid windows.
SymPair count_windows(const char* op, const Windows& windows, const SymPair& size);
// Refuses windows without a tap inside the map, whose maximum would be undefined.
void check_taps(const char* op, const pooling::Args& args);

SymPair maps_of(const Tensor& x);                       // (H, W)
Sizes maps_of(SymIntArrayRef sizes);                    // the same, as sizes
Sizes with_maps(const Tensor& x, const SymPair& size);  // the shape of x with other maps
// Checks that x has maps of this size.
void check_shape(const char* op, const char* name, const Tensor& x, const SymPair& maps);

// A new tensor, channels_last if x is.
at::MemoryFormat format_of(const Tensor& x);
Tensor empty_maps(const Tensor& like, const SymPair& maps, at::ScalarType dtype);

// Args with the dtype, maps and axes of contiguous `in` or `out` (of `format`); the other side has maps of this size.
pooling::Args pooling_args(const char* op, const Tensor& any, at::MemoryFormat format, const Windows& windows,
                           const SymPair& in, const SymPair& out);

}  // namespace tp
