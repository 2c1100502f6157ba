// Radix sort by two bits a pass (§13.5, Figs. 13.7 to 13.9): half the passes over global memory, four local buckets a
// block instead of two, and so runs half as long.
#include "sort/partition.h"

namespace tp::sort {

void radix_multibit(const Args& args, Context& context) { sort_by_digits<2, 1>("radix_multibit", args, context); }

}  // namespace tp::sort
