// Whether sequences are sorted: the check behind validate=True.
#pragma once
#include "merge/merge.h"

namespace tp::merge {

// first[0] and first[1], which the caller sets to a number that no place has, become the least flat places of a and of
// b whose key stands before its predecessor in the same row, if there are any.
void find_descents(const Sequences& in, int64_t* first, Context& context);

}  // namespace tp::merge
