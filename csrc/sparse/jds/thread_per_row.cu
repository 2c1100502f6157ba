// Fig. 14.15: a thread a place of rows sorted by length. Neighbours are equally long, so a warp diverges little, and a
// diagonal lies side by side without padding, though aligned to nothing. A thread finds by bisection how many diagonals
// reach its place.
#include "sparse/rows.h"

namespace tp {

void spmv_jds::thread_per_row(const Args& args, Context& context) { sparse::multiply_rows<sparse::Jds>(args, context); }

}  // namespace tp
