// All threads process blocks of columns, then bins, then runs of rows (sparse/blocked/stages.h).
#include "sparse/threaded.h"

#include "sparse/blocked/stages.h"

namespace tp {

void spmv_blocked::threaded(const Args& args, Context& context) {
  sparse::check_runs(args, context);
  sparse::with_matrix(args, [&](const auto& matrix) {
    sparse::BlockedStages stages(matrix, context);
    constexpr int64_t run = 1 << 12;
    for (int64_t c = 0; c < args.k; ++c) {
      sparse::parallel(context, args.blocks, [&](int64_t block) { stages.multiply_block(block, c); });
      sparse::parallel(context, args.bins, [&](int64_t bin) { stages.order_bin(bin); });
      sparse::parallel(context, ceil_div(args.rows, run), [&](int64_t i) {
        const int64_t end = tp::min(args.rows, (i + 1) * run);
        for (int64_t row = i * run; row < end; ++row) stages.sum_row(row, c);
      });
    }
  });
}

}  // namespace tp
