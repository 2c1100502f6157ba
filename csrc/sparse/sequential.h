// The sequential rungs, against which all others are tested; written for clarity only.
#pragma once
#include <algorithm>

#include "sparse/rows.h"

namespace tp::sparse {

template <class Format>
void multiply_rows_in_order(const typename Format::Args& args, Context& context) {
  with_rows<Format>(args, context, [](const auto& matrix) {
    const auto b = matrix.bind(simt::Pointers{});
    for (int64_t position = 0; position < b.a.rows; ++position) {
      const int64_t row = row_at<Format>(b, position);
      for (int64_t c = 0; c < b.a.k; ++c) b.store(row, c, dot<Format>(b, position, c));
    }
  });
}

// `each(b, add)` must call add(entry, row, column) for all entries; their products are added in that order.
template <class A, class Each>
void multiply_entries_in_order(const A& args, Context& context, Each each) {
  with_matrix(args, [&](const auto& matrix) {
    using Acc = typename std::decay_t<decltype(matrix)>::Acc;
    const auto b = matrix.bind(simt::Pointers{});
    Acc* sums = context.workspace<Acc>(b.a.rows * b.a.k);
    std::fill(sums, sums + b.a.rows * b.a.k, Acc(0));
    each(b, [&](int64_t entry, int64_t row, int64_t column) {
      if (!b.row_usable(row, entry) || !b.template column_usable<false>(column, entry)) return;
      for (int64_t c = 0; c < b.a.k; ++c) sums[row * b.a.k + c] += b.product(entry, column, c);
    });
    for (int64_t row = 0; row < b.a.rows; ++row) {
      for (int64_t c = 0; c < b.a.k; ++c) b.store(row, c, sums[row * b.a.k + c]);
    }
  });
}

}  // namespace tp::sparse
