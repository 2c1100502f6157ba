// Runs of rows on all threads, and in each run the j-th entries of all rows together (sparse/threaded_columns.h).
#include "sparse/jds/layout.h"
#include "sparse/threaded_columns.h"

namespace tp {

void spmv_jds::threaded(const Args& args, Context& context) {
  sparse::multiply_columns_on_threads<sparse::Jds>(args, context);
}

}  // namespace tp
