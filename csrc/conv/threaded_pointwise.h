// Convolution with filters of 1 x 1 in NCHW. The images already are matrices [maps, pixels], and so are the products
// with the filters. So the lanes of a vector hold pixels, and no result is transposed.
#pragma once
#include "block/on_vectors.h"
#include "conv/gather.h"
#include "conv/threaded.h"

namespace tp::conv {

inline bool suits_pointwise(const Args& a) {
  constexpr int64_t lanes = 16;  // about as many as a vector has; at most one in seven may be unused
  const auto fits = [](const Axis& axis) { return axis.kernel == 1 && axis.stride == 1 && axis.pad == 0; };
  const int64_t pixels = a.rows.in * a.cols.in;
  return a.layout == Layout::nchw && a.pass != Pass::wgrad && fits(a.rows) && fits(a.cols) &&
         7 * ceil_div(pixels, lanes) * lanes <= 8 * pixels;
}

// Computes fprop or dgrad.
template <class T>
void pointwise(const Args& args, Context& context) {
  using A = acc_t<T>;
  constexpr int64_t blocks_per_task = 8;
  const Elements<T> e(args);
  const Gather<T> g(e, args.pass);
  const int64_t plane = args.rows.in * args.cols.in;
  const auto kernel = accumulate_for<A>(plane);
  const int64_t lanes = kernel.lanes, strip = blocks_per_task * lanes, strips = ceil_div(plane, strip);
  const A* filters = widened(static_cast<const T*>(e.weight), e.weights(), context);
  int64_t *from = context.workspace<int64_t>(g.maps), *off = context.workspace<int64_t>(g.depth);
  int64_t *to_target = context.workspace<int64_t>(g.maps), *to_sums = context.workspace<int64_t>(g.maps);
  for (int64_t m = 0; m < g.maps; ++m) from[m] = m * g.map_stride, to_target[m] = m * plane, to_sums[m] = m * lanes;
  for (int64_t c = 0; c < g.depth; ++c) off[c] = c * g.depth_stride;
  const int64_t tasks = g.n * g.groups * strips, size = lines((g.depth + g.maps) * lanes);
  A* scratch = context.workspace<A>(min(tasks, int64_t(context.device.threads)) * size);

  run_tasks(context, tasks, [&](int64_t i, int64_t slot) {
    const int64_t image = i / strips / g.groups, group = i / strips % g.groups, first = i % strips * strip;
    const T* source = g.source + (image * g.groups + group) * g.depth * plane;
    T* target = g.target + (image * g.groups + group) * g.maps * plane;
    A *panel = scratch + slot * size, *sums = panel + g.depth * lanes;
    for (int64_t pixel = first; pixel < min(first + strip, plane); pixel += lanes) {
      const int64_t columns = min(lanes, plane - pixel);
      on_vectors([=, depth = g.depth] {
        for (int64_t c = 0; c < depth; ++c) {
          const T* row = source + c * plane + pixel;
          TP_INDEPENDENT
          for (int64_t lane = 0; lane < columns; ++lane) panel[c * lanes + lane] = A(row[lane]);
          std::fill(panel + c * lanes + columns, panel + (c + 1) * lanes, A(0));
        }
      });
      A* out = sums;
      const int64_t* to = to_sums;
      if constexpr (std::is_same<T, A>::value) {
        if (columns == lanes) out = target + pixel, to = to_target;
      }
      accumulate(kernel, g.maps, filters + group * g.group_stride, from, g.depth, off, panel, true, out, to);
      if (to == to_target && !g.bias) continue;
      for (int64_t m = 0; m < g.maps; ++m) {
        const A shift = g.bias ? A(g.bias[group * g.maps + m]) : A(0);
        for (int64_t lane = 0; lane < columns; ++lane) {
          target[m * plane + pixel + lane] = T(out[to[m] + lane] + shift);
        }
      }
    }
  });
}

}  // namespace tp::conv
