// Reduction of rows by an index per row on CUDA, by atomics: each row is combined into the result of its group.
#pragma once
#include "segmented/groups.h"

namespace tp::segmented {

// Takes the problems that can_reduce_groups() admits. Rows whose index is not a group are left out.
void reduce_groups_by_atomics(const Groups&, Context&);

}  // namespace tp::segmented
