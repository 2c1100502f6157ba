// Groups of lanes sum the entries of a row: side by side in the entries where Y has one column, side by side in the
// columns of Y where it has more, `width` neighbours each.
#pragma once
#include "block/load_store.cuh"
#include "block/warp.cuh"
#include "sparse/rows.h"

namespace tp::sparse {

using block::warp_size;

// Entry `at` of a row as far as it is known before x is read; no entry if `at` is not before `end`.
template <class B>
struct Entry {
  using T = typename B::Value;
  int64_t column;  // or -1
  T value;

  TP_DEVICE Entry(const B& b, int64_t at, int64_t end) : column(-1), value(T(0)) {
    if (at >= end) return;
    const int64_t entry = b.a.perm != nullptr ? b.through_plan(at) : at;
    if (entry < 0) return;
    const int64_t read = b.col_idx[b.a.perm_indexes ? entry : at];
    value = b.values[entry];
    column = inside(read, b.a.cols) ? read : -1;
  }
};

// Entries begin, begin + step, ... before `end`, times x.
template <class B>
TP_DEVICE typename B::Acc sum_entries(const B& b, int64_t begin, int64_t end, int step) {
  using Acc = typename B::Acc;
  using T = typename B::Value;
  constexpr int bunch = 4;
  Acc sum(0);
  for (; begin < end; begin += bunch * step) {
    Acc product[bunch];
    Entry<B> entry[bunch] = {
        {b, begin, end}, {b, begin + step, end}, {b, begin + 2 * step, end}, {b, begin + 3 * step, end}};
#pragma unroll
    for (int j = 0; j < bunch; ++j) {
      const T x = entry[j].column >= 0 ? b.x[entry[j].column] : T(0);
      product[j] = entry[j].column >= 0 ? Acc(entry[j].value) * Acc(x) : Acc(0);
    }
    sum += (product[0] + product[1]) + (product[2] + product[3]);
  }
  return sum;
}

// The sum of all lanes of a group of `lanes`, a power of 2, in each.
template <class Acc>
TP_DEVICE Acc sum_lanes(Acc sum, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    sum += block::detail::by_words(sum, [=](unsigned w) { return __shfl_xor_sync(~0u, w, distance); });
  }
  return sum;
}

// How k columns are dealt to lanes: `lanes` lanes, a power of 2, take `width` columns each; `strips` times.
template <int width_>
struct Columns {
  static constexpr int width = width_;
  int lanes;
  int64_t strips;

  explicit Columns(int64_t k) : lanes(1) {
    while (lanes < warp_size && lanes * width < k) lanes *= 2;
    strips = ceil_div(k, int64_t(lanes) * width);
  }
};

// f(Columns<width>): as many as make 16 bytes if all rows of `operands` lie so, else one.
template <class M, class F>
void with_columns(const M& matrix, std::initializer_list<const void*> operands, F f) {
  constexpr int width = int(16 / sizeof(typename M::T));
  bool aligned = matrix.a.k % width == 0;
  for (const void* operand : operands) aligned = aligned && reinterpret_cast<uintptr_t>(operand) % 16 == 0;
  if (aligned) {
    f(Columns<width>(matrix.a.k));
  } else {
    f(Columns<1>(matrix.a.k));
  }
}

// `width` neighbouring sums of a row.
template <class B, int width>
struct RowSums {
  using T = typename B::Value;
  using Acc = typename B::Acc;
  Acc sum[width];

  TP_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < width; ++i) sum[i] = Acc(0);
  }
  // Adds entries begin to end - 1, for columns c to c + width - 1 of X, c + width <= k.
  TP_DEVICE void add(const B& b, int64_t begin, int64_t end, int64_t c) {
    using V = block::Vector<T, width>;
    constexpr int bunch = 4;
    for (; begin < end; begin += bunch) {
      Entry<B> entry[bunch] = {{b, begin, end}, {b, begin + 1, end}, {b, begin + 2, end}, {b, begin + 3, end}};
      V x[bunch];
#pragma unroll
      for (int j = 0; j < bunch; ++j) {
        if (entry[j].column >= 0) x[j] = *reinterpret_cast<const V*>(b.x + entry[j].column * b.a.k + c);
      }
#pragma unroll
      for (int j = 0; j < bunch; ++j) {
        if (entry[j].column < 0) continue;
#pragma unroll
        for (int i = 0; i < width; ++i) sum[i] += Acc(entry[j].value) * Acc(x[j].v[i]);
      }
    }
  }
};

}  // namespace tp::sparse
