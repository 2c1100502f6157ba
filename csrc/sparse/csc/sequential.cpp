// Processes one column after another: adds the product of each of its entries with one element of x to the sum of the
// entry's row (sparse/sequential.h).
#include "sparse/sequential.h"

namespace tp {

void spmv_csc::sequential(const Args& args, Context& context) {
  sparse::check_columns(args, context);
  sparse::multiply_entries_in_order(args, context, [](const auto& b, auto add) {
    for (int64_t column = 0; column < b.a.cols; ++column) {
      for (int64_t i = b.pointer(column); i < b.pointer(column + 1); ++i) add(i, b.row_idx[i], column);
    }
  });
}

}  // namespace tp
