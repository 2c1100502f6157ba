// One thread per column: it reads one element of x for the whole column, and adds every product to its row by an
// atomic. This is the transpose of Fig. 14.9's kernel; CSR needs no atomics, but CSC does.
#include "sparse/scatter.h"

namespace tp {
namespace {

using namespace sparse;

template <class M>
struct ScatterColumns {
  M matrix;
  typename M::Acc* sums;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using Acc = typename M::Acc;
    const auto b = matrix.bind(block);
    const auto acc = block.global("sums", sums, b.a.rows * b.a.k);
    block.phase("scatter", [&](int t) {
      const int64_t i = block.index().x * scatter_threads + t, column = i / b.a.k, c = i % b.a.k;
      if (column >= b.a.cols) return;
      const int64_t end = b.pointer(column + 1);
      for (int64_t entry = b.pointer(column); entry < end; ++entry) {
        const int64_t row = b.row_idx[entry];
        if (b.row_usable(row, entry)) acc.template atomic<Sum<Acc>>(row * b.a.k + c, b.product(entry, column, c));
      }
    });
  }
};

}  // namespace

void spmv_csc::thread_per_column(const Args& args, Context& context) {
  check_columns(args, context);
  with_matrix(args, [&](const auto& matrix) {
    scatter("thread_per_column", matrix, context, [&](auto* sums) {
      simt::launch(context, "thread_per_column", {ceil_div(args.cols * args.k, int64_t(scatter_threads))},
                   scatter_threads, 0, ScatterColumns<std::decay_t<decltype(matrix)>>{matrix, sums});
    });
  });
}

}  // namespace tp
