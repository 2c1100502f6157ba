// The segmented scan that moves no byte twice: each row read once and written once, in shares that do not depend on the
// lengths of the segments.
//
// A block takes a tile by ticket, stages its rows, scans them in stretches, publishes the value of its open last
// segment at once and looks up what precedes its first (block/lookback.cuh). Whoever holds a smaller ticket has started
// and publishes without waiting for a larger one, so every wait ends. A reverse scan counts rows and segments from the
// far end.
#include "segmented/scan_elements.h"
#ifdef __CUDACC__
#include "segmented/lookback_extrema.h"
#include "segmented/lookback_segments.cuh"

namespace tp::segment_scan {

void decoupled_lookback(const Args& args, Context& context) {
  using namespace segmented;
  with_scan(args, [&](const auto& e) {
    if constexpr (is_extremum<std::decay_t<decltype(e)>>) {
      extrema_by_lookback(args, context);
    } else {
      scan_by_path(e, context);
    }
  });
}

}  // namespace tp::segment_scan
#endif
