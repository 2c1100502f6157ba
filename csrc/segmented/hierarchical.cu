// The three kernels of the scan (§11.6, Fig. 11.9) over pairs of a head flag and a value: the driver and the block
// algorithm know nothing of segments. A column is a row of the driver. Where a row begins a segment, it learns from a
// bisection of the offsets.
#include "block/coarsened.h"
#include "block/kogge_stone.h"
#include "block/scan_sections.h"
#include "segmented/scan_elements.h"

namespace tp::segment_scan {

void hierarchical(const Args& args, Context& context) {
  segmented::with_scan(args, [&](auto elements) {
    // Pairs of maps and flags are large: a section of theirs must fit in shared memory.
    constexpr int lanes = sizeof(typename decltype(elements)::Acc) > 16 ? 128 : 256;
    block::scan_rows<block::Coarsened<block::KoggeStone<lanes>, 9>>(context, "hierarchical", elements);
  });
}

}  // namespace tp::segment_scan
