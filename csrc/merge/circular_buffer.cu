// The merge with circular buffers (§12.7, Figs. 12.15 to 12.20): what an iteration has loaded and not used stays in
// shared memory, and each element is loaded once.
//
// Fig. 12.16 fills the free places of B as if as many were free as in A, and fills both with the elements that follow
// the used ones, although those up to a tile's length are there already. Fig. 12.18 lets the second search of a thread
// start from the end of the first while it still counts from the tile's beginning. Fig. 12.19 takes i - 1 for j - 1 in
// B. Here both sides are one struct, whose invariant says where an element lies, and all searches count from the tile's
// beginning.
#include "merge/tiles.h"

namespace tp::merge {

void circular_buffer(const Args& args, Context& context) { merge_tiles<true>("circular_buffer", args, context); }

}  // namespace tp::merge
