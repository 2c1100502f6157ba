#include "reduction/atomics.h"

namespace tp::reduction {

// Fig. 10.15: a coarsening factor of 8, so sixteen elements a lane between a block's first load and its first barrier.
void coarsened(const Args& args, Context& context) { reduce_by_atomics<8>("coarsened", args, context); }

}  // namespace tp::reduction
