// Tells whether sequences are sorted, for validate=True.
#pragma once
#include "merge/merge.h"

namespace tp::merge {

// The caller sets first[0] and first[1] to a number greater than all positions. first[0] (for a) and first[1] (for b)
// become the least flat position of a key that comes before its predecessor in the same row, if there is one.
void find_descents(const Sequences& in, int64_t* first, Context& context);

}  // namespace tp::merge
