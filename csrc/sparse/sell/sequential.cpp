// One row after another: the sum of its entries times their elements of x (sparse/sequential.h).
#include "sparse/sequential.h"

#include "sparse/sell/layout.h"

namespace tp {

void spmv_sell::sequential(const Args& args, Context& context) {
  sparse::multiply_rows_in_order<sparse::Sell>(args, context);
}

}  // namespace tp
