// fprop and dgrad as one computation: every element of the target gathers products from the source.
//
// fprop   y[n, m, h, w]  gathers x  through the taps of map m,     summed over the channels of its group
// dgrad   dx[n, c, i, j] gathers dy through the taps of channel c, summed over the maps of its group
//
// With stride 1, every tap contributes to a pixel of dx, as to a pixel of y. With stride s, only those taps p
// contribute for which i + pad - p * dilation is a multiple of s, which depends on i modulo s alone. So dgrad is
// divided into phases, one per remainder. Within a phase, both the pixels and the taps are evenly spaced, and each
// phase is a gather of its own. It has no products that do not exist, except beyond the edges of dy.
//
// Beyond the edges, the source counts as zero. In fprop that is what padding means. In dgrad, such products do not
// exist, and adding zeros for them is right only if all weights are finite; a kernel that relies on this checks the
// weights, and uses Gather::plain_sum if one is infinite or NaN.
#pragma once
#include "conv/elements.h"
#include "core/division.h"

namespace tp::conv {

// One axis of one phase. Output o of the phase is element first + o * step of the target. Its tap k is tap first_tap +
// k * tap_step of the filter, and reads source element origin + o * source_step + k * source_tap.
struct GatherAxis {
  int64_t outputs, first, step;
  int64_t taps, first_tap, tap_step;
  int64_t origin, source_step, source_tap, sources;

  TP_HD int64_t target(int64_t o) const { return first + o * step; }
  TP_HD int64_t tap(int64_t k) const { return first_tap + k * tap_step; }
  TP_HD int64_t source(int64_t o, int64_t k) const { return origin + o * source_step + k * source_tap; }
  TP_HD bool inside(int64_t source) const { return source >= 0 && source < sources; }
};

TP_HD inline int64_t phases(const Axis& a, Pass pass) { return pass == Pass::dgrad ? min(a.stride, a.in) : 1; }
// The outputs of the longest phase, which is the first one.
TP_HD inline int64_t phase_outputs(const Axis& a, Pass pass) {
  return pass == Pass::dgrad ? ceil_div(a.in, a.stride) : a.out;
}

TP_HD inline int64_t common_divisor(int64_t a, int64_t b) {
  while (b > 0) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

TP_HD inline GatherAxis gather_axis(const Axis& a, Pass pass, int64_t phase) {
  if (pass == Pass::fprop) return {a.out, 0, 1, a.kernel, 0, 1, -a.pad, a.stride, a.dilation, a.in};
  const int64_t divisor = common_divisor(a.dilation, a.stride), period = a.stride / divisor;
  int64_t p = 0;
  while (p < min(a.kernel, period) && (phase + a.pad - p * a.dilation) % a.stride != 0) ++p;
  const int64_t taps = p < min(a.kernel, period) ? (a.kernel - 1 - p) / period + 1 : 0;
  return {ceil_div(a.in - phase, a.stride),
          phase,
          a.stride,
          taps,
          p,
          period,
          (phase + a.pad - p * a.dilation) / a.stride,
          1,
          -(a.dilation / divisor),
          a.out};
}

// Returns i / d and sets i to i % d; neither is negative.
TP_HD inline int64_t divide(int64_t& i, int64_t d) {
  const int64_t q = quotient(i, d);
  i -= q * d;
  return q;
}

// The position of a pixel: its image, and its row and column within the phase.
struct PhasePixel {
  int64_t image, h, w;
};

TP_HD inline PhasePixel phase_pixel(int64_t i, const GatherAxis& rows, const GatherAxis& cols) {
  PhasePixel at{};
  at.w = i;
  at.h = divide(at.w, cols.outputs);
  at.image = divide(at.h, rows.outputs);
  return at;
}

// The arrays of a gather. For each of the `maps` that a group writes, `depth` channels are summed.
template <class T>
struct Gather {
  using A = acc_t<T>;
  Pass pass;
  const T *source, *weight, *bias;
  T* target;
  Strides source_strides, target_strides;
  int64_t n, groups, depth, maps;
  int64_t group_stride, depth_stride, map_stride, tap_stride;  // of the filters, in elements
  Axis rows, cols;

  explicit Gather(const Elements<T>& e, Pass pass)
      : pass(pass),
        source(pass == Pass::fprop ? e.x : e.y),
        weight(e.weight),
        bias(pass == Pass::fprop ? e.bias : nullptr),
        target(pass == Pass::fprop ? e.y : e.x),
        source_strides(pass == Pass::fprop ? e.x_strides : e.y_strides),
        target_strides(pass == Pass::fprop ? e.y_strides : e.x_strides),
        n(e.n),
        groups(e.groups),
        depth(pass == Pass::fprop ? e.channels : e.maps),
        maps(pass == Pass::fprop ? e.maps : e.channels),
        group_stride(e.maps * e.channels * e.taps()),
        tap_stride(e.filters == Layout::nchw ? 1 : e.channels),
        rows(e.rows),
        cols(e.cols) {
    const int64_t of_map = e.channels * e.taps(), of_channel = e.filters == Layout::nchw ? e.taps() : 1;
    depth_stride = pass == Pass::fprop ? of_channel : of_map;
    map_stride = pass == Pass::fprop ? of_map : of_channel;
  }

  TP_HD int64_t weight_at(int64_t group, int64_t map, int64_t channel, int64_t p, int64_t q) const {
    return group * group_stride + map * map_stride + channel * depth_stride + (p * cols.kernel + q) * tap_stride;
  }

  // Computes one target element without the bias, only from the products that exist.
  TP_HD A plain_sum(const GatherAxis& r, const GatherAxis& c, int64_t image, int64_t group, int64_t map, int64_t h,
                    int64_t w) const {
    A sum = 0;
    for (int64_t channel = 0; channel < depth; ++channel) {
      for (int64_t p = 0; p < r.taps; ++p) {
        const int64_t i = r.source(h, p);
        if (!r.inside(i)) continue;
        for (int64_t q = 0; q < c.taps; ++q) {
          const int64_t j = c.source(w, q);
          if (!c.inside(j)) continue;
          sum += A(source[source_strides.at(image, group * depth + channel, i, j)]) *
                 A(weight[weight_at(group, map, channel, r.tap(p), c.tap(q))]);
        }
      }
    }
    return sum;
  }
};

// Whether a value is neither infinite nor NaN.
template <class A>
TP_HD bool is_finite(A value) {
  return value - value == A(0);
}

}  // namespace tp::conv
