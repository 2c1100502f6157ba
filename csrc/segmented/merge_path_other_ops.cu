#include "segmented/elements.h"
#include "segmented/merge_path_other_ops.h"
#ifdef __CUDACC__
#include "segmented/merge_path_reduce.cuh"

namespace tp::segmented {

void other_ops_by_path(const Args& args, Context& context) {
  with_reduction(args, [&](const auto& e) {
    if constexpr (is_compiled_separately<std::decay_t<decltype(e)>>) reduce_by_path(e, context);
  });
}

}  // namespace tp::segmented
#endif
