// One row after another: its entries times what they point to (sparse/sequential.h).
#include "sparse/sequential.h"

#include "sparse/csr/layout.h"

namespace tp {

void spmv_csr::sequential(const Args& args, Context& context) {
  sparse::multiply_rows_in_order<sparse::Csr>(args, context);
}

}  // namespace tp
