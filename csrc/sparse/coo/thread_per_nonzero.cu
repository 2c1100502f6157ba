// Fig. 14.5: a thread an entry, which it multiplies and adds to its row by an atomic. Reads are side by side and the
// work is balanced whatever the matrix; the atomics of one row queue up. The figure adds to a y that holds its start
// values: here sums start at 0 and y0 is added last, once.
#include "sparse/scatter.h"

namespace tp {

void spmv_coo::thread_per_nonzero(const Args& args, Context& context) {
  sparse::with_matrix(args, 0, [&](const auto& matrix) {
    sparse::scatter("thread_per_nonzero", matrix, context,
                    [&](auto* sums) { sparse::scatter_entries("thread_per_nonzero", matrix, context, sums); });
  });
}

}  // namespace tp
