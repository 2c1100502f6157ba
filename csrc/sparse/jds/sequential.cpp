// Sums the products of each row's entries with their elements of x, one row after another (sparse/sequential.h).
#include "sparse/sequential.h"

#include "sparse/jds/layout.h"

namespace tp {

void spmv_jds::sequential(const Args& args, Context& context) {
  sparse::multiply_rows_in_order<sparse::Jds>(args, context);
}

}  // namespace tp
