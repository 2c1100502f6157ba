// A section is a block of 256 lanes that scan as block/kogge_stone.h tells.
#include "block/kogge_stone.h"
#include "scan/hierarchical.h"

namespace tp::scan {

void kogge_stone(const Args& args, Context& context) {
  scan_hierarchically<block::KoggeStone<256>>("kogge_stone", args, context);
}

}  // namespace tp::scan
