// One row after another: the sum of its entries times their elements of x (sparse/sequential.h).
#include "sparse/sequential.h"

#include "sparse/ell/layout.h"

namespace tp {

void spmv_ell::sequential(const Args& args, Context& context) {
  sparse::multiply_rows_in_order<sparse::Ell>(args, context);
}

}  // namespace tp
