// The CPU's production rungs of ELL and COO multiply the padded rows and then the tail.
#include "sparse/matrix.h"

namespace tp {

void spmv_hyb::threaded(const Args& args, Context& context) {
  sparse::multiply_hybrid(args, context, spmv_ell::threaded, spmv_coo::threaded);
}

}  // namespace tp
