// Section 14.6, the sectioned form of JDS: one thread per row, and each section of sorted rows is an ELL of its own
// width, so that its columns can be aligned and there is little padding.
#include "sparse/rows.h"

namespace tp {

void spmv_sell::thread_per_row(const Args& args, Context& context) {
  sparse::multiply_rows<sparse::Sell>(args, context);
}

}  // namespace tp
