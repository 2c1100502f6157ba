// Entries in any order, on threads. Entries sorted by row are a CSR matrix, whose pointers are found first; otherwise
// each thread adds to its own sums.
#include "sparse/threaded.h"

namespace tp {
namespace {

using namespace sparse;

template <class I>
bool sorted(const I* index, int64_t n, Context& context) {
  const int64_t pieces = ceil_div(n, items_per_share);
  std::vector<char> wrong(size_t(tp::max(pieces, int64_t(1))), 0);
  parallel(context, pieces, [&](int64_t piece) {
    const int64_t end = tp::min(n - 1, (piece + 1) * items_per_share);
    I decreases = 0;
    for (int64_t i = piece * items_per_share; i < end; ++i) decreases |= I(index[i + 1] < index[i]);
    wrong[size_t(piece)] = char(decreases);
  });
  return std::none_of(wrong.begin(), wrong.end(), [](char w) { return w != 0; });
}

// ptrs[r] = the number of sorted row indices, all of them in 0..rows - 1, that are less than r.
template <class I>
void find_pointers(const I* row_idx, int64_t n, int64_t rows, I* ptrs, Context& context) {
  parallel(context, tp::max(int64_t(1), ceil_div(n, items_per_share)), [&](int64_t piece) {
    const int64_t begin = piece * items_per_share, end = tp::min(n, begin + items_per_share);
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t r = i == 0 ? 0 : int64_t(row_idx[i - 1]) + 1; r <= int64_t(row_idx[i]); ++r) ptrs[r] = I(i);
    }
    if (end == n) std::fill(ptrs + (n == 0 ? 0 : int64_t(row_idx[n - 1]) + 1), ptrs + rows + 1, I(n));
  });
}

}  // namespace

void spmv_coo::threaded(const Args& args, Context& context) {
  with_matrix(args, [&](const auto& matrix) {
    using M = std::decay_t<decltype(matrix)>;
    using I = typename M::I;
    const auto b = matrix.bind(simt::Pointers{});
    const int64_t n = args.entries;
    if (sorted(b.row_idx, n, context)) {
      if (n > 0) b.row_usable(b.row_idx[0], 0), b.row_usable(b.row_idx[n - 1], n - 1);
      I* ptrs = context.workspace<I>(args.rows + 1);
      find_pointers(b.row_idx, n, args.rows, ptrs, context);
      return spmv_csr::threaded({args, {ptrs, args.col_idx, nullptr}, false, nullptr, nullptr}, context);
    }
    scatter_strips(b, n, context, [&](const auto& strip) {
      const int64_t begin = n * strip.share / strip.shares, end = n * (strip.share + 1) / strip.shares;
      check_indices(b.row_idx, begin, end, args.rows, args.op, "row_idx");
      check_indices(b.col_idx, begin, end, args.cols, args.op, "col_idx");
      using Acc = typename M::Acc;
      for (int64_t i = begin; i < end; ++i) {
        add_scaled(strip.sums + int64_t(b.row_idx[i]) * strip.n, Acc(b.values[i]),
                   b.x + int64_t(b.col_idx[i]) * args.k + strip.first, strip.n);
      }
    });
  });
}

}  // namespace tp
