// The padded rows one after another, then the entries of the tail, by the sequential rungs of ELL and COO.
#include "sparse/matrix.h"

namespace tp {

void spmv_hyb::sequential(const Args& args, Context& context) {
  sparse::multiply_hybrid(args, context, spmv_ell::sequential, spmv_coo::sequential);
}

}  // namespace tp
