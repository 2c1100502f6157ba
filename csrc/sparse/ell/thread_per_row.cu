// Fig. 14.12: a thread a row of padded rows. Entry j of all rows lies side by side, so the threads of a warp read side
// by side; each stops at the end of its own row.
#include "sparse/rows.h"

namespace tp {

void spmv_ell::thread_per_row(const Args& args, Context& context) { sparse::multiply_rows<sparse::Ell>(args, context); }

}  // namespace tp
