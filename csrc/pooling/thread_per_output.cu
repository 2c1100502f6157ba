// A thread an output pixel: the loops over maps and pixels of Fig. 16.7 become the grid, the window stays a loop.
// Backward, a thread an input pixel.
#include "pooling/compute.h"

namespace tp::pooling {

void thread_per_output(const Args& args, Context& context) { compute(args, ThreadPerOutput{context}); }

}  // namespace tp::pooling
