// Fig. 14.9: a thread a row. It alone sums the row, so there is no atomic; but the threads of a warp read a row's
// length apart, and all wait for the longest of their rows.
#include "sparse/rows.h"

namespace tp {

void spmv_csr::thread_per_row(const Args& args, Context& context) { sparse::multiply_rows<sparse::Csr>(args, context); }

}  // namespace tp
