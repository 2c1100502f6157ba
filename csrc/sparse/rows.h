// The formats that store rows. The `layout.h` of each format is a struct, a parameter of the templates here, that tells
// where the entries of a row are stored. A position is that of a row in the order of storage; if the format
// permutes rows, row_perm[position] is the row itself.
#pragma once
#include "core/division.h"
#include "sparse/matrix.h"
#include "sparse/pointers.h"

namespace tp::sparse {

// `count` entries whose addresses are `step` apart.
struct Walk {
  int64_t count, first, step;
  template <class B>
  TP_HD int64_t at(const B&, int64_t j) const {
    return first + j * step;
  }
};

// Calls f(Matrix) for the format's Args. If rows are permuted, y is cleared first, because row_perm may lack some rows.
template <class Format, class F>
void with_rows(const typename Format::Args& args, Context& context, F f) {
  Format::check(args, context);
  with_matrix(args, [&](const auto& matrix) {
    using T = typename std::decay_t<decltype(matrix)>::T;
    if (Format::permuted) context.clear(args.y, args.rows * args.k * int64_t(sizeof(T)));
    f(matrix);
  });
}

// The row at a position, or -1.
template <class Format, class B>
TP_HD int64_t row_at(const B& b, int64_t position) {
  if constexpr (Format::permuted) {
    const int64_t row = b.row_perm[position];
    return usable(row, b.a.rows, b.a.op, "row_perm", position) ? row : -1;
  } else {
    return position;
  }
}

// Multiplies entry `at` of a row by its element of column c of X; 0 if there is no such entry.
template <class Format, class B>
TP_HD typename B::Acc term(const B& b, int64_t at, int64_t c) {
  using Acc = typename B::Acc;
  if (Format::permuted && !inside(at, b.a.entries)) return Acc(0);
  int64_t entry = at;
  if constexpr (Format::planned) {
    if (b.a.perm != nullptr) entry = b.through_plan(at);
    if (entry < 0) return Acc(0);
    if (b.a.perm_indexes) at = entry;
  }
  const int64_t column = b.col_idx[at];
  return b.template column_usable<Format::padded>(column, at) ? b.product(entry, column, c) : Acc(0);
}

// Multiplies the row at a position by column c of X.
template <class Format, class B>
TP_HD typename B::Acc dot(const B& b, int64_t position, int64_t c) {
  const auto walk = Format::walk(b, position);
  typename B::Acc sum(0);
  for (int64_t j = 0; j < walk.count; ++j) sum += term<Format>(b, walk.at(b, j), c);
  return sum;
}

}  // namespace tp::sparse
