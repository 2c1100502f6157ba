// One row after another: its entries times what they point to (sparse/sequential.h).
#include "sparse/sequential.h"

namespace tp {

void spmv_sell::sequential(const Args& args, Context& context) {
  sparse::multiply_rows_in_order<sparse::Sell>(args, context);
}

}  // namespace tp
