// Each thread takes an equal share of the columns and has its own sums; the sums of all shares are added in order.
#include "sparse/threaded.h"

namespace tp {

void spmv_csc::threaded(const Args& args, Context& context) {
  using namespace sparse;
  check_columns(args, context);
  with_matrix(args, [&](const auto& matrix) {
    using Acc = typename std::decay_t<decltype(matrix)>::Acc;
    const auto b = matrix.bind(simt::Pointers{});
    scatter_strips(b, args.entries, context, [&](const auto& strip) {
      // The columns whose first entry lies in this share of the entries.
      const auto start = [&](int64_t i) {
        int64_t low = 0, high = args.cols;
        while (low < high) {
          const int64_t middle = low + (high - low) / 2;
          (b.pointer(middle) < args.entries * i / strip.shares ? low : high) =
              middle + (b.pointer(middle) < args.entries * i / strip.shares);
        }
        return i == strip.shares ? args.cols : low;
      };
      for (int64_t column = start(strip.share), last = start(strip.share + 1); column < last; ++column) {
        const int64_t begin = b.pointer(column), end = b.pointer(column + 1);
        check_indices(b.row_idx, begin, end, args.rows, args.op, "row_idx");
        for (int64_t i = begin; i < end; ++i) {
          add_scaled(strip.sums + int64_t(b.row_idx[i]) * strip.n, Acc(b.values[i]),
                     b.x + column * args.k + strip.first, strip.n);
        }
      }
    });
  });
}

}  // namespace tp
