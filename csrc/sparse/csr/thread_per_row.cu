// SpMV with the CSR format, one thread per row (§14.3, Figs. 14.8 and 14.9).
//
// Each thread sums its row alone, so there are neither atomics nor barriers. But the threads of a warp read elements
// that are a row's length apart, and all wait for the longest of their rows. With k columns of X, each thread has one
// row and one column of Y, and neighbouring threads take the columns of one row.
//
// The figure adds the sum to y; here y0 is added if it is given (store). A plan refers to entries through a permutation
// (sparse.h). Row pointers are clamped. A column outside the matrix is an error on the host; the device skips such an
// entry.
#include "sparse/csr/layout.h"

namespace tp {
namespace {

using namespace sparse;

template <class M>
struct SpmvCsrKernel {
  static constexpr int threads = 256;
  M matrix;

  // y[row] of Fig. 14.9, for column c of X and Y.
  template <class B>
  TP_HD static void multiply_row(const B& csr, int64_t row, int64_t c) {
    if (row >= csr.a.rows) return;
    typename B::Acc sum(0);
    const int64_t end = csr.pointer(row + 1);
    for (int64_t i = csr.pointer(row); i < end; ++i) {
      const int64_t entry = csr.a.perm == nullptr ? i : csr.through_plan(i);
      if (entry < 0) continue;
      const int64_t at = csr.a.perm_indexes ? entry : i, col = csr.col_idx[at];
      if (csr.template column_usable<false>(col, at)) sum += csr.product(entry, col, c);
    }
    csr.store(row, c, sum);
  }

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto csr = matrix.bind(block);
    block.phase("row", [&](int t) {
      const int64_t i = block.index().x * threads + t, k = csr.a.k;
      if (k == 1) {  // tells the compiler that k is 1
        multiply_row(csr, i, 0);
      } else {
        const int64_t row = quotient(i, k);
        multiply_row(csr, row, i - row * k);
      }
    });
  }
};

}  // namespace

void spmv_csr::thread_per_row(const Args& args, Context& context) {
  with_rows<Csr>(args, context, [&](const auto& matrix) {
    using Kernel = SpmvCsrKernel<std::decay_t<decltype(matrix)>>;
    const int64_t blocks = ceil_div(args.rows * args.k, int64_t(Kernel::threads));
    simt::launch(context, "thread_per_row", {blocks}, Kernel::threads, 0, Kernel{matrix});
  });
}

}  // namespace tp
