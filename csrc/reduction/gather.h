// Where a block of an [outer, n, inner] array of any layout is, or a copy of it.
#pragma once
#include <algorithm>

#include "reduction/reduction.h"

namespace tp::reduction {

using Dims = std::vector<Layout::Dim>;

// Calls f(offset, count, stride) for elements `first` to first + count - 1 of these dimensions, run by run along the
// last of them.
template <class F>
void each_run(const Dims& dims, int64_t first, int64_t count, F f) {
  if (dims.empty()) return f(int64_t(0), count, int64_t(0));
  const Layout::Dim last = dims.back();
  int64_t line = dims.size() == 1 ? 0 : first / last.size, at = first - line * last.size;
  for (; count > 0; at = 0, ++line) {
    const int64_t run = std::min(count, last.size - at);
    int64_t offset = at * last.stride, index = line;
    for (size_t d = dims.size() - 1; d-- > 1; index /= dims[d].size) offset += index % dims[d].size * dims[d].stride;
    f(offset + index * dims[0].stride, run, last.stride);  // of one dimension, the index is 0
    count -= run;
  }
}

// Some consecutive indices of a dimension of the array.
struct Range {
  int64_t first, count;

  // If their elements are evenly spaced, where the first is, and their distance.
  bool is_even(const Dims& dims, int64_t& offset, int64_t& stride) const {
    if (!dims.empty() && first % dims.back().size + count > dims.back().size) return false;
    each_run(dims, first, count, [&](int64_t begin, int64_t, int64_t step) { offset = begin, stride = step; });
    return true;
  }
};

// A block of the array, [rows, n, lanes]: the rows are `step` apart, and their elements `pitch`. Lanes are neighbours.
template <class T>
struct Block {
  const T* x;
  int64_t pitch, step;
};

// Returns the block where it is, if its lanes are neighbours or, if it has a single lane, the elements of its rows;
// else a packed copy.
template <class T>
Block<T> gather(const T* x, const Layout& layout, const Range& outer, const Range& n, const Range& inner, T* copies) {
  int64_t row = 0, step = 0, element = 0, pitch = 0, lane = 0, distance = 0;
  if (outer.is_even(layout.outer, row, step) && n.is_even(layout.n, element, pitch) &&
      inner.is_even(layout.inner, lane, distance)) {
    const bool neighbours = inner.count > 1 ? distance == 1 : pitch == 1 || n.count == 1;
    if (neighbours) return {x + row + element + lane, pitch, step};
  }
  T* to = copies;
  const auto copy = [&](const T* from, int64_t count, int64_t stride) {
    if (stride == 1) {
      std::copy_n(from, count, to);
    } else if (stride == 0) {
      std::fill_n(to, count, *from);
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
    }
    to += count;
  };
  each_run(layout.outer, outer.first, outer.count, [&](int64_t begin, int64_t rows, int64_t row_stride) {
    for (const T* from = x + begin; rows > 0; --rows, from += row_stride) {
      each_run(layout.n, n.first, n.count, [&](int64_t first, int64_t count, int64_t stride) {
        if (layout.inner.empty()) return copy(from + first, count, stride);
        for (const T* k = from + first; count > 0; --count, k += stride) {
          each_run(layout.inner, inner.first, inner.count,
                   [&](int64_t at, int64_t lanes, int64_t between) { copy(k + at, lanes, between); });
        }
      });
    }
  });
  return {copies, inner.count, n.count};
}

}  // namespace tp::reduction
