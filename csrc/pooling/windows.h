// The geometry of windows and pixels. Every functor of this folder is a template over the type of its axes: Axis for
// all windows, Halves for windows of two pixels that do not overlap, for which loops unroll and divisions become
// shifts.
#pragma once
#include "pooling/pooling.h"

namespace tp::pooling {

struct Range {
  int64_t begin, count;
};

// The taps of window `o` that lie inside the map.
TP_HD inline Range window(const Axis& axis, int64_t o) {
  const int64_t begin = o * axis.stride - axis.padding, d = axis.dilation;
  const int64_t inside = begin < 0 ? begin + ceil_div(-begin, d) * d : begin;
  const int64_t room = tp::min(begin + axis.reach(), axis.size) - inside;
  return {inside, d == 1 ? room : floor_div(room + d - 1, d)};
}

TP_HD inline int64_t dilation(const Axis& axis) { return axis.dilation; }

// The windows that cover position i.
TP_HD inline Range windows_over(const Axis& axis, int64_t i) {
  const int64_t before = i + axis.padding - axis.reach();  // a window that begins here ends before i
  const int64_t begin = before < 0 ? 0 : floor_div(before, axis.stride) + 1;
  return {begin, tp::min(axis.outputs, floor_div(i + axis.padding, axis.stride) + 1) - begin};
}

// The number of elements that window `o` counts along an axis: its pixels, with or without those of the padding.
TP_HD inline int64_t counted(const Axis& axis, int64_t o, bool include_padding) {
  const int64_t begin = o * axis.stride - axis.padding, end = begin + axis.kernel;
  if (include_padding) return tp::min(end, axis.size + axis.padding) - begin;
  return tp::min(end, axis.size) - tp::max(begin, int64_t(0));
}

// Windows of two pixels that do not overlap and lie inside the map, as in LeNet-5.
struct Halves {
  int64_t size, outputs;
};

inline bool halves(const Axis& a) {
  return a.kernel == 2 && a.stride == 2 && a.padding == 0 && a.dilation == 1 && 2 * a.outputs <= a.size;
}

TP_HD inline Range window(const Halves&, int64_t o) { return {2 * o, 2}; }
TP_HD inline int64_t dilation(const Halves&) { return 1; }
TP_HD inline Range windows_over(const Halves& axis, int64_t i) { return {i >> 1, i >> 1 < axis.outputs}; }
TP_HD inline int64_t counted(const Halves&, int64_t, bool) { return 2; }

// Calls call(h, w) with the axes as their own types.
template <class Call>
void with_axes(const Args& args, Call call) {
  if (!halves(args.h) || !halves(args.w)) return call(args.h, args.w);
  call(Halves{args.h.size, args.h.outputs}, Halves{args.w.size, args.w.outputs});
}

// The pixels of the maps as rows of outputs, in memory order: lines of a map or, channels last, single pixels of all
// maps.
inline Outputs outputs(const Maps& maps, int64_t cost) {
  if (maps.inner == 1) return {maps.outer * maps.h, maps.w, cost};
  return {maps.outer * maps.h * maps.w, maps.inner, cost};
}

struct Pixel {
  int64_t outer, h, w, inner;
};

struct Row {
  Pixel first;
  bool line;
  TP_HD Pixel pixel(int64_t column) const {
    return line ? Pixel{first.outer, first.h, column, 0} : Pixel{first.outer, first.h, first.w, column};
  }
};

TP_HD inline Row row_of(const Maps& maps, int64_t row) {
  const bool line = maps.inner == 1;
  const int64_t y = line ? row : floor_div(row, maps.w), outer = floor_div(y, maps.h);
  return {{outer, y - outer * maps.h, line ? 0 : row - y * maps.w, 0}, line};
}

TP_HD inline int64_t offset_of(const Maps& maps, const Pixel& p, int64_t h, int64_t w) {
  return ((p.outer * maps.h + h) * maps.w + w) * maps.inner + p.inner;
}
TP_HD inline int64_t offset_of(const Maps& maps, const Pixel& p) { return offset_of(maps, p, p.h, p.w); }

}  // namespace tp::pooling
