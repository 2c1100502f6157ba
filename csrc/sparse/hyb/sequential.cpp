// The padded rows one after another, then the entries of the tail: ELL and COO by their oracles.
#include "sparse/matrix.h"

namespace tp {

void spmv_hyb::sequential(const Args& args, Context& context) {
  sparse::multiply_hybrid(args, context, spmv_ell::sequential, spmv_coo::sequential);
}

}  // namespace tp
