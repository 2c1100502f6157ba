// The reduction at the speed of memory: each element is read once, by 16-byte loads, many of which are in flight.
//
// A thread combines its own elements; then the threads of a warp and of a block are combined. If a row is divided among
// a few blocks, they form a cluster, and the first of them combines their totals; if it is divided among many, a small
// second launch does, which starts while the first one is finishing. Every tree depends only on the shape, so floats
// have the same bits in every run, and neither atomics nor cleared memory are needed. Lanes go along n if rows are
// contiguous (rows.cu), and across the rows if they are interleaved (columns.cu).
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
