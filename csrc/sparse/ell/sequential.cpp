// One row after another: its entries times what they point to (sparse/sequential.h).
#include "sparse/sequential.h"

namespace tp {

void spmv_ell::sequential(const Args& args, Context& context) {
  sparse::multiply_rows_in_order<sparse::Ell>(args, context);
}

}  // namespace tp
