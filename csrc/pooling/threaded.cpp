#include "pooling/compute.h"

namespace tp::pooling {

void threaded(const Args& args, Context& context) { compute(args, Threaded{context}); }

}  // namespace tp::pooling
