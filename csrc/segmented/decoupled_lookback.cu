// The segmented scan that reads and writes each row once, in tiles that do not depend on the lengths of the segments.
//
// A block takes a tile by ticket, stages its rows and scans them in slices. It publishes the aggregate of its open last
// segment at once, and looks back for what precedes its first segment (block/lookback.cuh). Every wait ends, because
// blocks with smaller tickets have already started, and publish without waiting for larger ones. A reverse scan counts
// rows and segments from the last one.
#include "segmented/scan_elements.h"
#ifdef __CUDACC__
#include "segmented/lookback_other_ops.h"
#include "segmented/lookback_segments.cuh"

namespace tp::segment_scan {

void decoupled_lookback(const Args& args, Context& context) {
  using namespace segmented;
  with_scan(args, [&](const auto& e) {
    if constexpr (is_compiled_separately<std::decay_t<decltype(e)>>) {
      other_ops_by_lookback(args, context);
    } else {
      scan_by_path(e, context);
    }
  });
}

}  // namespace tp::segment_scan
#endif
