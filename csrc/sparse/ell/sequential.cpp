// Sums the products of each row's entries with their elements of x, one row after another (sparse/sequential.h).
#include "sparse/sequential.h"

#include "sparse/ell/layout.h"

namespace tp {

void spmv_ell::sequential(const Args& args, Context& context) {
  sparse::multiply_rows_in_order<sparse::Ell>(args, context);
}

}  // namespace tp
