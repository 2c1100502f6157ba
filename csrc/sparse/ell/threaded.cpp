// All threads take runs of rows; in each run, the j-th entries of all rows are multiplied together
// (sparse/threaded_columns.h).
#include "sparse/ell/layout.h"
#include "sparse/threaded_columns.h"

namespace tp {

void spmv_ell::threaded(const Args& args, Context& context) {
  sparse::multiply_columns_on_threads<sparse::Ell>(args, context);
}

}  // namespace tp
