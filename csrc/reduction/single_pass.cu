// The reduction at the speed of memory: each element is read once, by 16-byte loads of which many are in flight.
//
// A thread combines its own elements, then those of a warp and of a block are combined, and, if a row is split over
// blocks, the blocks' totals in a small second launch, which starts while the first one finishes. Every tree is fixed
// by the shape, so floats give the same bits in every run, and neither atomics nor cleared memory are needed. Lanes go
// along n if rows are contiguous (rows.cu), and across the rows if they interleave (columns.cu).
#include "reduction/columns.h"
#include "reduction/rows.h"
#ifdef __CUDACC__

namespace tp::reduction {

void single_pass(const Args& args, Context& context) {
  if (args.inner == 1) {
    single_pass_rows(args, context);
  } else {
    single_pass_columns(args, context);
  }
}

}  // namespace tp::reduction
#endif
