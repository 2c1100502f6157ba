// Processes one block of columns after another, then one bin after another, then one row after another
// (sparse/blocked/stages.h).
#include "sparse/blocked/stages.h"

namespace tp {

void spmv_blocked::sequential(const Args& args, Context& context) {
  sparse::check_runs(args, context);
  sparse::with_matrix(args, [&](const auto& matrix) {
    sparse::BlockedStages stages(matrix, context);
    for (int64_t c = 0; c < args.k; ++c) {
      for (int64_t block = 0; block < args.blocks; ++block) stages.multiply_block(block, c);
      for (int64_t bin = 0; bin < args.bins; ++bin) stages.order_bin(bin);
      for (int64_t row = 0; row < args.rows; ++row) stages.sum_row(row, c);
    }
  });
}

}  // namespace tp
