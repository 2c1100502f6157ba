// All threads take runs of rows; in each run, the j-th entries of all rows are multiplied together
// (sparse/threaded_columns.h).
#include "sparse/jds/layout.h"
#include "sparse/threaded_columns.h"

namespace tp {

void spmv_jds::threaded(const Args& args, Context& context) {
  sparse::multiply_columns_on_threads<sparse::Jds>(args, context);
}

}  // namespace tp
