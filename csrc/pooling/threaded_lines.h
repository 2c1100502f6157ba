// What the passes of the threaded rung share: the lines that its inner loops go along, a row of a map or (channels
// last) the channels of a pixel, and the taps of the windows over a line.
#pragma once
#include <cstring>
#include <memory>
#include <type_traits>

#include "block/convert.h"
#include "pooling/compute.h"

namespace tp::pooling::host {

constexpr int64_t grain = 1 << 14;  // operations that pay for a thread

// An array for one piece of a loop over lines; std::vector<bool> would not be a plain array.
template <class A>
std::unique_ptr<A[]> array(int64_t n) {
  return std::unique_ptr<A[]>(new A[static_cast<size_t>(n)]);
}

// The elements of an array: themselves or, of half, which is converted fast only as an array, `space` with their
// values.
template <class T, class A>
auto readable(const T* from, int64_t n, A* space) {
  if constexpr (std::is_same<T, half>::value) {
    convert(n, from, space);
    return static_cast<const A*>(space);
  } else {
    return from;
  }
}

// Calls f(step), with the step as a constant if loops over memory gain by it.
template <class F>
void with_step(int64_t step, F f) {
  if (step == 1) return f(std::integral_constant<int64_t, 1>{});
  if (step == 2) return f(std::integral_constant<int64_t, 2>{});
  f(step);
}

// The windows o whose tap k lies inside the map: begin <= o < end.
struct Span {
  int64_t begin, end;
};
inline Span inside(const Axis& axis, int64_t k) {
  const int64_t offset = k * axis.dilation - axis.padding, last = axis.size - 1 - offset;
  const int64_t begin = offset >= 0 ? 0 : ceil_div(-offset, axis.stride);
  return {begin, last < 0 ? begin : tp::min(axis.outputs, last / axis.stride + 1)};
}
inline bool lies_inside(const Axis& axis, int64_t o, int64_t k) {
  const int64_t i = o * axis.stride - axis.padding + k * axis.dilation;
  return i >= 0 && i < axis.size;
}
inline int64_t first_tap(const Axis& axis, int64_t o) { return window(axis, o).begin; }

template <class A>
inline bool replaces(A value, A held) {  // of equal values the earlier stays, and so does the first NaN
  if constexpr (std::is_floating_point<A>::value) return !(value <= held) & (held == held);
  return value > held;
}

// a if `is_a`, else b. Several conditional expressions would become a branch, which prevents vectorization.
template <class A>
inline A chosen(bool is_a, A a, A b) {
  Bits<sizeof(A)> x, y;
  std::memcpy(&x, &a, sizeof(A));
  std::memcpy(&y, &b, sizeof(A));
  x = static_cast<decltype(x)>(y ^ ((x ^ y) & (is_a ? ~0ull : 0)));
  std::memcpy(&a, &x, sizeof(A));
  return a;
}

// The outputs of one inner loop: a row of a map or, channels last, the channels of one output pixel.
struct Line {
  int64_t outer, oh, ow, width;  // a row begins at ow = 0
};
inline int64_t lines_per_row(const Maps& maps) { return maps.inner == 1 ? 1 : maps.w; }
inline Line line_of(const Maps& maps, int64_t i) {
  const int64_t per_row = lines_per_row(maps), row = i / per_row;
  return {row / maps.h, row % maps.h, maps.inner == 1 ? 0 : i % per_row, maps.inner == 1 ? maps.w : maps.inner};
}

constexpr int most_taps = 3;  // at once; more of them are slower

template <int n>
using Taps = std::integral_constant<int, n>;

// Calls f(Taps<n>, first, count, from, step, ih, iw) for the taps of a line's windows in row-major order: outputs first
// to first + count - 1 of the line read x[from], x[from + step], ...; (ih, iw) is the pixel that the first of them
// reads. Channels last, neighbouring taps of a window come together, so that what is held for each channel is loaded
// and stored once for n of them: tap t reads x[from + t * inner], ..., of pixel (ih, iw + t).
template <int most, class F>
inline void for_taps(const Args& a, const Line& line, F f) {
  for (int64_t i = 0; i < a.h.kernel; ++i) {
    if (!lies_inside(a.h, line.oh, i)) continue;
    const int64_t ih = line.oh * a.h.stride - a.h.padding + i * a.h.dilation;
    const int64_t row = (line.outer * a.in.h + ih) * a.in.w;
    for (int64_t j = 0; j < a.w.kernel; ++j) {
      const int64_t offset = j * a.w.dilation - a.w.padding;
      if (a.in.inner == 1) {
        const Span span = inside(a.w, j);
        const int64_t iw = span.begin * a.w.stride + offset;
        if (span.begin < span.end) f(Taps<1>{}, span.begin, span.end - span.begin, row + iw, a.w.stride, ih, iw);
      } else if (lies_inside(a.w, line.ow, j)) {
        const int64_t iw = line.ow * a.w.stride + offset;
        const auto use = [&](auto taps) {
          f(taps, int64_t(0), line.width, (row + iw) * a.in.inner, int64_t(1), ih, iw);
        };
        int taps = 1;
        while (taps < most && a.w.dilation == 1 && j + taps < a.w.kernel && iw + taps < a.in.w) ++taps;
        taps == 1 ? use(Taps<1>{}) : taps == 2 ? use(Taps<tp::min(most, 2)>{}) : use(Taps<tp::min(most, 3)>{});
        j += taps - 1;
      }
    }
  }
}

template <class Body>
void for_lines(Context& context, const Maps& maps, int64_t cost, Body body) {
  const int64_t lines = maps.outer * maps.h * lines_per_row(maps);
  const int64_t width = maps.inner == 1 ? maps.w : maps.inner;
  context.parallel_for(lines, tp::max(grain / tp::max(width * cost, int64_t(1)), int64_t(1)), body);
}

// Calls body(std::bool_constant<first>).
template <class F>
void with_first(bool first, F body) {
  first ? body(std::true_type{}) : body(std::false_type{});
}

}  // namespace tp::pooling::host
