// For host rungs whose loops run along the rows of images map by map: images in the other layout become copies.
#pragma once
#include "conv/elements.h"

namespace tp::conv {

// to[n, rows, cols] = from[n, cols, rows], in squares whose lines of either side stay in the first cache.
template <class T>
void transpose_images(Context& context, const void* from, void* to, int64_t n, int64_t rows, int64_t cols) {
  constexpr int64_t side = 16;
  const T* const source = static_cast<const T*>(from);
  T* const target = static_cast<T*>(to);
  const int64_t strips = ceil_div(rows, side);
  context.parallel_for(n * strips, max(int64_t(1), 4096 / (side * max(cols, int64_t(1)))),
                       [=](int64_t begin, int64_t end) {
                         for (int64_t i = begin; i < end; ++i) {
                           const int64_t first = i % strips * side, count = min(side, rows - first);
                           const T* x = source + i / strips * rows * cols + first;
                           T* y = target + (i / strips * rows + first) * cols;
                           for (int64_t k = 0; k < cols; k += side) {
                             const int64_t last = min(cols, k + side);
                             for (int64_t r = 0; r < count; ++r) {
                               for (int64_t j = k; j < last; ++j) y[r * cols + j] = x[j * rows + r];
                             }
                           }
                         }
                       });
}

// run(args) with x and y map by map, whatever their layout.
template <class T, class Run>
void in_nchw(const Args& args, Context& context, const Run& run) {
  if (args.layout == Layout::nchw) return run(args);
  const int64_t x_pixels = args.rows.in * args.cols.in, y_pixels = args.rows.out * args.cols.out;
  Args packed = args;
  packed.layout = Layout::nchw;
  packed.x = context.workspace<T>(args.n * args.c * x_pixels);
  packed.y = context.workspace<T>(args.n * args.m * y_pixels);
  if (args.pass != Pass::dgrad) transpose_images<T>(context, args.x, packed.x, args.n, args.c, x_pixels);
  if (args.pass != Pass::fprop) transpose_images<T>(context, args.y, packed.y, args.n, args.m, y_pixels);
  run(packed);
  if (args.pass == Pass::dgrad) transpose_images<T>(context, packed.x, args.x, args.n, x_pixels, args.c);
  if (args.pass == Pass::fprop) transpose_images<T>(context, packed.y, args.y, args.n, y_pixels, args.m);
}

}  // namespace tp::conv
