#include "segmented/elements.h"
#include "segmented/merge_path_softmax.h"
#ifdef __CUDACC__
#include "segmented/merge_path_expand.cuh"
#include "segmented/merge_path_reduce.cuh"

namespace tp::segmented {

void softmax_by_path(const Args& args, Context& context) {
  with_softmax(
      args, context, [&](const auto& e) { reduce_by_path(e, context); },
      [&](const auto& e) { expand_by_path(e, context); });
}

}  // namespace tp::segmented
#endif
