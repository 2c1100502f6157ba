// One thread per row multiplies the padded rows; then the tail, sorted by row and divided into equal shares, is added
// to their sums. Every run gives the same bits, and one long row costs no more than many short ones.
#include "sparse/matrix.h"
#ifdef __CUDACC__

namespace tp {

void spmv_hyb::ell_plus_segments(const Args& args, Context& context) {
  sparse::multiply_hybrid(args, context, spmv_ell::thread_per_row, spmv_coo::segmented);
}

}  // namespace tp
#endif
