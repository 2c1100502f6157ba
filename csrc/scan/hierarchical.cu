// The three-kernel scan of an input of any length (§11.6, Figs. 11.9 and 11.10; 002, 003): the driver of
// block/scan_sections.h with large coarsened sections. Nine elements a stretch: an odd stride spreads the lanes of a
// warp over all shared memory banks.
#include "block/coarsened.h"
#include "block/kogge_stone.h"
#include "scan/hierarchical.h"

namespace tp::scan {

void hierarchical(const Args& args, Context& context) {
  scan_hierarchically<block::Coarsened<block::KoggeStone<256>, 9>>("hierarchical", args, context);
}

}  // namespace tp::scan
