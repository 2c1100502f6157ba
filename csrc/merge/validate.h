// Whether sequences are sorted, as validate=True checks.
#pragma once
#include "merge/merge.h"

namespace tp::merge {

// The caller sets first[0] and first[1] to a number greater than all positions. They become the least flat positions,
// in a and in b, of a key that comes before its predecessor in the same row, if there are any.
void find_descents(const Sequences& in, int64_t* first, Context& context);

}  // namespace tp::merge
