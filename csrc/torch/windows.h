// What the pooling operators share: the windows that their arguments describe, and how many of them fit into a map.
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

// An argument that may be one number for both dimensions, or be left out.
SymPair pair(const char* op, const char* name, SymIntArrayRef values, SymIntArrayRef otherwise = {});

// Refuses what is not [N, C, H, W] or [C, H, W], or empty in more than the batch.
void check_maps(const char* op, const char* name, const Tensor& x);
// `second` has the shape of `first`, its device, and this dtype.
void check_beside(const char* op, const char* first_name, const Tensor& first, const char* name, const Tensor& second,
                  at::ScalarType dtype);

// How many windows lie on maps of this size; refuses what makes no sense.
SymPair count_windows(const char* op, const Windows& windows, const SymPair& size);
// A window of which no tap lies in the map would be a maximum over nothing.
void check_taps(const char* op, const pooling::Args& args);

SymPair maps_of(const Tensor& x);                       // (H, W)
Sizes maps_of(SymIntArrayRef sizes);                    // the same of the sizes of maps, as an argument takes it
Sizes with_maps(const Tensor& x, const SymPair& size);  // the shape of x with other maps
void check_shape(const char* op, const char* name, const Tensor& x, const SymPair& maps);  // x's maps are of this size

// channels_last stays; a new tensor of that layout.
at::MemoryFormat format_of(const Tensor& x);
Tensor empty_maps(const Tensor& like, const SymPair& maps, at::ScalarType dtype);

// Dtype, maps and axes, for contiguous `in` or `out` (of `format`) with the other side's maps of this size.
pooling::Args pooling_args(const char* op, const Tensor& any, at::MemoryFormat format, const Windows& windows,
                           const SymPair& in, const SymPair& out);

}  // namespace tp
