#include "reduction/atomics.h"

namespace tp::reduction {

// Fig. 10.13: two elements a lane.
void multi_block(const Args& args, Context& context) { reduce_by_atomics<1>("multi_block", args, context); }

}  // namespace tp::reduction
