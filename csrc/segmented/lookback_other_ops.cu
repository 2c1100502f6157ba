#include "segmented/lookback_other_ops.h"
#include "segmented/scan_elements.h"
#ifdef __CUDACC__
#include "segmented/lookback_segments.cuh"

namespace tp::segmented {

void other_ops_by_lookback(const Args& args, Context& context) {
  with_scan(args, [&](const auto& e) {
    if constexpr (is_compiled_separately<std::decay_t<decltype(e)>>) scan_by_path(e, context);
  });
}

}  // namespace tp::segmented
#endif
