// SpMV with the ELL format, one thread per row of padded rows (§14.4, Figs. 14.11 and 14.12).
//
// Entry t of row r is stored at t * rows + r, so the reads of a warp are coalesced. Each thread stops at the end of its
// own row and sums it alone, so there are neither atomics nor barriers. With k columns of X, each thread has one row
// and one column of Y, and neighbouring threads take the columns of one row.
//
// The figure takes one entry after another, and a thread waits for each column index before it can load x. Here the
// loop takes eight entries at a time, and loads from each array for all eight before it uses any. Padding inside a row
// has a column of -1 and is skipped. A column outside the matrix is an error on the host; the device skips such an
// entry.
#include "sparse/ell/layout.h"

namespace tp {
namespace {

using namespace sparse;

template <class M>
struct SpmvEllKernel {
  static constexpr int threads = 256, entries_at_once = 8;
  M matrix;

  // y[row] of Fig. 14.12, for column c of X and Y.
  template <class B>
  TP_HD static void multiply_row(const B& ell, int64_t row, int64_t c) {
    using T = typename B::Value;
    using Acc = typename B::Acc;
    if (row >= ell.a.rows) return;
    const int64_t nnz_per_row = ell.length(row, ell.a.width);
    Acc sum(0);
    for (int64_t t = 0; t < nnz_per_row; t += entries_at_once) {
      typename B::Position col[entries_at_once];
      T value[entries_at_once], x[entries_at_once];
      for (int j = 0; j < entries_at_once; ++j) {
        const int64_t i = t + j < nnz_per_row ? (t + j) * ell.a.rows + row : -1;
        const bool exists = i >= 0;  // asked of i, which saves a third of the registers
        col[j] = exists ? typename B::Position(ell.col_idx[i]) : -1;
        value[j] = exists ? T(ell.values[i]) : T(0);
        if (exists) ell.template column_usable<true>(col[j], i);  // raises the error on the host
      }
      for (int j = 0; j < entries_at_once; ++j) {
        if (!inside(col[j], ell.a.cols)) col[j] = -1;
        x[j] = col[j] >= 0 ? T(ell.x[col[j] * ell.a.k + c]) : T(0);
      }
      Acc products(0);
      for (int j = 0; j < entries_at_once; ++j) products += col[j] >= 0 ? Acc(value[j]) * Acc(x[j]) : Acc(0);
      sum += products;
    }
    ell.store(row, c, sum);
  }

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto ell = matrix.bind(block);
    block.phase("row", [&](int t) {
      const int64_t i = block.index().x * threads + t, k = ell.a.k;
      if (k == 1) {  // tells the compiler that k is 1
        multiply_row(ell, i, 0);
      } else {
        const int64_t row = quotient(i, k);
        multiply_row(ell, row, i - row * k);
      }
    });
  }
};

}  // namespace

void spmv_ell::thread_per_row(const Args& args, Context& context) {
  with_rows<Ell>(args, context, [&](const auto& matrix) {
    using Kernel = SpmvEllKernel<std::decay_t<decltype(matrix)>>;
    const int64_t blocks = ceil_div(args.rows * args.k, int64_t(Kernel::threads));
    simt::launch(context, "thread_per_row", {blocks}, Kernel::threads, 0, Kernel{matrix});
  });
}

}  // namespace tp
