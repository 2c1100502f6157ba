// A copy of a batch of matrices on the device, each of them transposed.
#pragma once
#include "core/context.h"

namespace tp::block {

// Matrices in memory as [n, groups * lines, columns]: lines are channels and columns pixels, or the other way round.
// The columns of a line are contiguous; other strides are given, in elements. The copy is [n, columns, groups, padded],
// with zeros after the lines of each group.
struct Images {
  int64_t n, groups, lines, columns;
  int64_t image_stride, line_stride;
  int64_t padded;
};

// Elements have `size` bytes: 1, 2, 4 or 8.
void transpose_images(const void* from, const Images&, void* to, size_t size, Context&);

}  // namespace tp::block
