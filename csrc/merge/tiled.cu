// The tiled merge (§12.6, Figs. 12.10 to 12.14): coalesced loads into shared memory, and all searches but two a block
// there. Every iteration loads both tiles anew, so about half of all elements are loaded twice.
//
// Fig. 12.11 leaves the block's co-ranks in the tile of A, where keys of one byte could not hold them: they have a
// place of their own. Fig. 12.13 takes full tiles for granted when it counts what was used, also in the last iteration;
// here the search is told how much there is.
#include "merge/tiles.h"

namespace tp::merge {

void tiled(const Args& args, Context& context) { merge_tiles<false>("tiled", args, context); }

}  // namespace tp::merge
