// The three-kernel scan of an input of any length (§11.6, Figs. 11.9 and 11.10; 002, 003): the driver of hierarchical.h
// with large coarsened sections. Nine elements a stretch: an odd stride spreads the lanes of a warp over all shared
// memory banks.
#include "scan/coarsened.h"
#include "scan/hierarchical.h"
#include "scan/kogge_stone.h"

namespace tp::scan {

void hierarchical(const Args& args, Context& context) {
  scan_hierarchically<Coarsened<KoggeStone<256>, 9>>("hierarchical", args, context);
}

}  // namespace tp::scan
