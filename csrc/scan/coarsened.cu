// Thread coarsening (§11.5) at its plainest: the book's example of 64 threads, each with a stretch of 16 elements.
#include "block/coarsened.h"
#include "block/kogge_stone.h"
#include "scan/hierarchical.h"

namespace tp::scan {

void coarsened(const Args& args, Context& context) {
  scan_hierarchically<block::Coarsened<block::KoggeStone<64>, 16>>("coarsened", args, context);
}

}  // namespace tp::scan
