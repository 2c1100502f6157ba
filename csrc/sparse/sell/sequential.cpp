// Sums the products of each row's entries with their elements of x, one row after another (sparse/sequential.h).
#include "sparse/sequential.h"

#include "sparse/sell/layout.h"

namespace tp {

void spmv_sell::sequential(const Args& args, Context& context) {
  sparse::multiply_rows_in_order<sparse::Sell>(args, context);
}

}  // namespace tp
