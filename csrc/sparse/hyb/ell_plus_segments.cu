// The padded rows with one thread per row, and the tail, sorted by row, in equal shares on top of their sums: the same
// bits in every run, and one long row costs no more than many short ones.
#include "sparse/matrix.h"
#ifdef __CUDACC__

namespace tp {

void spmv_hyb::ell_plus_segments(const Args& args, Context& context) {
  sparse::multiply_hybrid(args, context, spmv_ell::thread_per_row, spmv_coo::segmented);
}

}  // namespace tp
#endif
