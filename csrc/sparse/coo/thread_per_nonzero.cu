// SpMV with the COO format, one thread per nonzero (§14.2, Figs. 14.4 and 14.5).
//
// Each thread multiplies its entry and adds the product to the sum of its row by an atomic, because other threads may
// have entries of the same row. Reads are coalesced and the work is balanced whatever the matrix, but atomics on the
// same row are serialized. No barrier is needed. With k columns of X, each thread has one entry and one column of Y,
// and neighbouring threads take the columns of one entry.
//
// The figure adds to a y that holds its start values. Here the sums start at 0 in accumulators, and y0 is added once at
// the end (scatter.h). A row or column outside the matrix is an error on the host; the device skips such an entry.
#include "sparse/scatter.h"

namespace tp {
namespace {

using namespace sparse;

template <class M>
struct SpmvCooKernel {
  M matrix;
  typename M::Acc* sums;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using Acc = typename M::Acc;
    const auto coo = matrix.bind(block);
    const int64_t num_nonzeros = coo.a.entries, k = coo.a.k;
    const auto y = block.global("sums", sums, coo.a.rows * k);
    block.phase("nonzero", [&](int t) {
      const int64_t thread = block.index().x * scatter_threads + t, i = k == 1 ? thread : thread / k;
      if (i >= num_nonzeros) return;
      const int64_t row = coo.row_idx[i], col = coo.col_idx[i], c = thread - i * k;
      if (!coo.row_usable(row, i) || !coo.template column_usable<false>(col, i)) return;
      y.template atomic<Sum<Acc>>(row * k + c, coo.product(i, col, c));
    });
  }
};

}  // namespace

void spmv_coo::thread_per_nonzero(const Args& args, Context& context) {
  with_matrix(args, [&](const auto& matrix) {
    scatter("thread_per_nonzero", matrix, context, [&](auto* sums) {
      const int64_t blocks = ceil_div(args.entries * args.k, int64_t(scatter_threads));
      simt::launch(context, "thread_per_nonzero", {blocks}, scatter_threads, 0,
                   SpmvCooKernel<std::decay_t<decltype(matrix)>>{matrix, sums});
    });
  });
}

}  // namespace tp
