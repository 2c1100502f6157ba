// The loops of Fig. 16.7 over pixels, and over the window of each pixel. The figure writes S[m, x, y] = 0 for S[m, h,
// w] = 0.
#include "pooling/compute.h"

namespace tp::pooling {

void sequential(const Args& args, Context& context) { compute(args, Sequential{context}); }

}  // namespace tp::pooling
