// One thread per output pixel: the loops over maps and pixels of Fig. 16.7 become the grid, and the window remains a
// loop. In the backward pass there is one thread per input pixel.
#include "pooling/compute.h"

namespace tp::pooling {

void thread_per_output(const Args& args, Context& context) { compute(args, ThreadPerOutput{context}); }

}  // namespace tp::pooling
