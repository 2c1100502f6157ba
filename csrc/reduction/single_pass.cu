// The reduction at the speed of memory: each element is read once, by loads of 16 bytes of which many are in flight.
//
// A thread combines its own elements, then the lanes of a warp, the warps of a block and, where a row is split over
// blocks, the blocks' totals in a second small launch, which starts while the first one drains. Every tree is fixed by
// the shape, so floats give the same bits in every run, and there are neither atomics nor memory to be cleared. Lanes
// lie along n where rows are contiguous (rows.cu), across the rows where they interleave (columns.cu).
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
