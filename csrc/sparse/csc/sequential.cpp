// One column after another: each of its entries times one element of x is added to the sum of its row
// (sparse/sequential.h).
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
