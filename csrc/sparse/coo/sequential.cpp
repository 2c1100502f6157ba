// One entry after another, each added to the sum of its row (sparse/sequential.h).
#include "sparse/sequential.h"

namespace tp {

void spmv_coo::sequential(const Args& args, Context& context) { sparse::multiply_coo_in_order(args, context); }

}  // namespace tp
