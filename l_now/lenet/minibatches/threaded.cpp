#include "lenet/minibatches/compute.h"

namespace tp::lenet {

void minibatches(const MinibatchArgs& args, Context& context) {
  if (!context.device.cuda) return compute_minibatches(args, Threaded{context});
#ifdef TP_WITH_CUDA
  detail::minibatches_on_gpu(args, context);
#endif
}

}  // namespace tp::lenet
