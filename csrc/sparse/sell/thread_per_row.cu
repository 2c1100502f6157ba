// SpMV with the SELL format, the sectioned form of JDS (§14.6, after Fig. 14.14), one thread per row of rows sorted by
// length.
//
// Each section of sorted rows is an ELL of its own width (Fig. 14.12), so its columns can be aligned and there is
// little padding. Each thread finds its section by a division and sums its row alone, so there are neither atomics nor
// barriers. It stores the result at the row's original position in y.
//
// The loop takes four entries at a time, and loads from each array for all four before it uses any, so a thread does
// not wait for each column index in turn. Padding inside a row has a column of -1 and is skipped. Pointers are clamped.
// A column or row outside the matrix is an error on the host; the device skips it.
#include "sparse/sell/layout.h"

namespace tp {
namespace {

using namespace sparse;

template <class M>
struct SpmvSellKernel {
  static constexpr int threads = 256, entries_at_once = 4;
  M matrix;

  // y of the row at `position`, for column c of X and Y.
  template <class B>
  TP_HD static void multiply_row(const B& sell, int64_t position, int64_t c) {
    using T = typename B::Value;
    using Acc = typename B::Acc;
    if (position >= sell.a.rows) return;
    const int64_t row = sell.row_perm[position];
    if (!usable(row, sell.a.rows, sell.a.op, "row_perm", position)) return;
    // The section has `height` positions from `start` on, and `width` entries per row from `begin` on.
    const int64_t section = quotient(position, sell.a.section_rows), start = section * sell.a.section_rows;
    const int64_t height = tp::min(sell.a.section_rows, sell.a.rows - start), begin = sell.pointer(section);
    const int64_t width = tp::max(int64_t(0), sell.pointer(section + 1) - begin) / height;
    const int64_t nnz_of_row = sell.length(position, width);
    Acc sum(0);
    for (int64_t t = 0; t < nnz_of_row; t += entries_at_once) {
      typename B::Position col[entries_at_once];
      T value[entries_at_once], x[entries_at_once];
      for (int j = 0; j < entries_at_once; ++j) {
        const int64_t i = t + j < nnz_of_row ? begin + (t + j) * height + position - start : -1;
        const bool exists = i >= 0;  // asked of i, which saves registers
        col[j] = exists ? typename B::Position(sell.col_idx[i]) : -1;
        value[j] = exists ? T(sell.values[i]) : T(0);
        if (exists) sell.template column_usable<true>(col[j], i);  // raises the error on the host
      }
      for (int j = 0; j < entries_at_once; ++j) {
        if (!inside(col[j], sell.a.cols)) col[j] = -1;
        x[j] = col[j] >= 0 ? T(sell.x[col[j] * sell.a.k + c]) : T(0);
      }
      Acc products(0);
      for (int j = 0; j < entries_at_once; ++j) products += col[j] >= 0 ? Acc(value[j]) * Acc(x[j]) : Acc(0);
      sum += products;
    }
    sell.store(row, c, sum);
  }

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto sell = matrix.bind(block);
    block.phase("row", [&](int t) {
      const int64_t i = block.index().x * threads + t, k = sell.a.k;
      if (k == 1) {  // tells the compiler that k is 1
        multiply_row(sell, i, 0);
      } else {
        const int64_t position = quotient(i, k);
        multiply_row(sell, position, i - position * k);
      }
    });
  }
};

}  // namespace

void spmv_sell::thread_per_row(const Args& args, Context& context) {
  with_rows<Sell>(args, context, [&](const auto& matrix) {
    using Kernel = SpmvSellKernel<std::decay_t<decltype(matrix)>>;
    const int64_t blocks = ceil_div(args.rows * args.k, int64_t(Kernel::threads));
    simt::launch(context, "thread_per_row", {blocks}, Kernel::threads, 0, Kernel{matrix});
  });
}

}  // namespace tp
