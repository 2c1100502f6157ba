// Adds each entry's product to the sum of its row, one entry after another (sparse/sequential.h). The storage order is
// fine, so no plan is needed.
#include "sparse/sequential.h"

namespace tp {

void spmv_coo::sequential(const Args& args, Context& context) {
  sparse::multiply_entries_in_order(args, context, [](const auto& b, auto add) {
    for (int64_t i = 0; i < b.a.entries; ++i) add(i, b.row_idx[i], b.col_idx[i]);
  });
}

}  // namespace tp
