#include "scan/hierarchical.h"
#include "scan/kogge_stone.h"

namespace tp::scan {

void kogge_stone(const Args& args, Context& context) {
  scan_hierarchically<KoggeStone<256>>("kogge_stone", args, context);
}

}  // namespace tp::scan
