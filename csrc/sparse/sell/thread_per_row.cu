// Section 14.6, the sectioned form of JDS: a thread a place, and each section of sorted rows an ELL of its own width,
// so that its columns may be aligned and padding is little.
#include "sparse/rows.h"

namespace tp {

void spmv_sell::thread_per_row(const Args& args, Context& context) {
  sparse::multiply_rows<sparse::Sell>(args, context);
}

}  // namespace tp
