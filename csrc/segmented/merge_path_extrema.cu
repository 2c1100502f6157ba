// merge_path for max, min, argmax and argmin: a file of their own, since compilers take their time.
#include "segmented/elements.h"
#ifdef __CUDACC__
#include "segmented/merge_path_reduce.cuh"

namespace tp::segmented {

void extrema_by_path(const Args& args, Context& context) {
  with_reduction(args, [&](const auto& e) {
    if constexpr (is_extremum<std::decay_t<decltype(e)>>) reduce_by_path(e, context);
  });
}

}  // namespace tp::segmented
#endif
