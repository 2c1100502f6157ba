#include "lenet/minibatches/compute.h"
#ifdef __CUDACC__

namespace tp::lenet {

void detail::minibatches_on_gpu(const MinibatchArgs& args, Context& context) {
  compute_minibatches(args, ThreadPerOutput{context});
}

}  // namespace tp::lenet
#endif
