// The sequential rungs of ELL and COO multiply the padded rows and then the tail.
#include "sparse/matrix.h"

namespace tp {

void spmv_hyb::sequential(const Args& args, Context& context) {
  sparse::multiply_hybrid(args, context, spmv_ell::sequential, spmv_coo::sequential);
}

}  // namespace tp
