// One row after another: the sum of its entries times their elements of x (sparse/sequential.h).
#include "sparse/sequential.h"

#include "sparse/jds/layout.h"

namespace tp {

void spmv_jds::sequential(const Args& args, Context& context) {
  sparse::multiply_rows_in_order<sparse::Jds>(args, context);
}

}  // namespace tp
