// Fig. 14.13: Fig. 14.12's kernel multiplies the padded rows and leaves its sums; then Fig. 14.5's kernel adds the tail
// to them by atomics.
#include "sparse/matrix.h"

namespace tp {

void spmv_hyb::ell_plus_coo(const Args& args, Context& context) {
  sparse::multiply_hybrid(args, context, spmv_ell::thread_per_row, spmv_coo::thread_per_nonzero);
}

}  // namespace tp
