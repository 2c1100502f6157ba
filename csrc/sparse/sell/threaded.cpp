// Runs of rows on all threads, and in each run the j-th entries of all rows together (sparse/threaded_columns.h).
#include "sparse/sell/layout.h"
#include "sparse/threaded_columns.h"

namespace tp {

void spmv_sell::threaded(const Args& args, Context& context) {
  sparse::multiply_columns_on_threads<sparse::Sell>(args, context);
}

}  // namespace tp
