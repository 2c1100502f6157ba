// Fig. 14.13: the padded rows by Fig. 14.12's kernel, which leaves its sums, then the tail by Fig. 14.5's, by atomics
// on top of them.
#include "sparse/matrix.h"

namespace tp {

void spmv_hyb::ell_plus_coo(const Args& args, Context& context) {
  sparse::multiply_hybrid(args, context, spmv_ell::thread_per_row, spmv_coo::thread_per_nonzero);
}

}  // namespace tp
