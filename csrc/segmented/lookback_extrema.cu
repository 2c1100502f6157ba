#include "segmented/lookback_extrema.h"
#include "segmented/scan_elements.h"
#ifdef __CUDACC__
#include "segmented/lookback_segments.cuh"

namespace tp::segmented {

void extrema_by_lookback(const Args& args, Context& context) {
  with_scan(args, [&](const auto& e) {
    if constexpr (is_extremum<std::decay_t<decltype(e)>>) scan_by_path(e, context);
  });
}

}  // namespace tp::segmented
#endif
