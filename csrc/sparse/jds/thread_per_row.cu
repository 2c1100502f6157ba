// SpMV with the JDS format, one thread per row of rows sorted by length (§14.6, Figs. 14.14 and 14.15; the book leaves
// the code as an exercise).
//
// Rows at neighbouring positions have almost equal lengths, so a warp diverges little. Diagonal t (an iteration in the
// book) holds the t-th entries of all rows that have one, from diag_ptrs[t] (iterPtr) on, in the order of positions: a
// warp reads adjacent elements without padding, though they are not aligned. Each thread finds by bisection how many
// diagonals reach its position, and sums its row alone, so there are neither atomics nor barriers. It stores the result
// at the row's original position in y, so nothing has to be reordered afterwards.
//
// The loop takes four entries at a time, and loads from each array for all four before it uses any, so a thread does
// not wait for each column index in turn. Pointers are clamped. A column or row outside the matrix is an error on the
// host; the device skips it.
#include "core/partition_point.h"
#include "sparse/jds/layout.h"

namespace tp {
namespace {

using namespace sparse;

template <class M>
struct SpmvJdsKernel {
  static constexpr int threads = 256, entries_at_once = 4;
  M matrix;

  // y of the row at `position`, for column c of X and Y.
  template <class B>
  TP_HD static void multiply_row(const B& jds, int64_t position, int64_t c) {
    using T = typename B::Value;
    using Acc = typename B::Acc;
    if (position >= jds.a.rows) return;
    const int64_t row = jds.row_perm[position];
    if (!usable(row, jds.a.rows, jds.a.op, "row_perm", position)) return;
    // Later diagonals are never longer, so the diagonals that reach this position come first.
    const int64_t nnz_of_row = partition_point(
        int64_t(0), jds.a.width, [&](int64_t t) { return jds.pointer(t + 1) - jds.pointer(t) > position; });
    Acc sum(0);
    for (int64_t t = 0; t < nnz_of_row; t += entries_at_once) {
      typename B::Position col[entries_at_once];
      T value[entries_at_once], x[entries_at_once];
      for (int j = 0; j < entries_at_once; ++j) {
        const int64_t i = t + j < nnz_of_row ? jds.pointer(t + j) + position : -1;
        const bool exists = inside(i, jds.a.entries);
        col[j] = exists ? typename B::Position(jds.col_idx[i]) : -1;
        value[j] = exists ? T(jds.values[i]) : T(0);
        if (exists) jds.template column_usable<false>(col[j], i);  // raises the error on the host
      }
      for (int j = 0; j < entries_at_once; ++j) {
        if (!inside(col[j], jds.a.cols)) col[j] = -1;
        x[j] = col[j] >= 0 ? T(jds.x[col[j] * jds.a.k + c]) : T(0);
      }
      Acc products(0);
      for (int j = 0; j < entries_at_once; ++j) products += col[j] >= 0 ? Acc(value[j]) * Acc(x[j]) : Acc(0);
      sum += products;
    }
    jds.store(row, c, sum);
  }

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto jds = matrix.bind(block);
    block.phase("row", [&](int t) {
      const int64_t i = block.index().x * threads + t, k = jds.a.k;
      if (k == 1) {  // tells the compiler that k is 1
        multiply_row(jds, i, 0);
      } else {
        const int64_t position = quotient(i, k);
        multiply_row(jds, position, i - position * k);
      }
    });
  }
};

}  // namespace

void spmv_jds::thread_per_row(const Args& args, Context& context) {
  with_rows<Jds>(args, context, [&](const auto& matrix) {
    using Kernel = SpmvJdsKernel<std::decay_t<decltype(matrix)>>;
    const int64_t blocks = ceil_div(args.rows * args.k, int64_t(Kernel::threads));
    simt::launch(context, "thread_per_row", {blocks}, Kernel::threads, 0, Kernel{matrix});
  });
}

}  // namespace tp
